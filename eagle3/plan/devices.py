"""What machines can do: `hardware.yaml`, typed."""

from __future__ import annotations

import functools
import os
from importlib import resources
from pathlib import Path
from typing import Annotated

import psutil
import yaml
from pydantic import Field

from eagle3.plan.shape import Figures

Positive = Annotated[float, Field(gt=0)]


class Utilisation(Figures):
    """Shares of a device's peak that work is assumed to reach."""

    read: Positive
    """Of its FLOP/s, when the target reads text (prompts, and features)."""
    decode: Positive
    """Of its FLOP/s, when the target writes."""
    bandwidth: Positive
    """Of its memory's bandwidth, when the target writes."""
    train: Positive
    """Of its FLOP/s, when the draft trains."""
    layer: Annotated[float, Field(ge=0)]
    """Seconds that one layer takes at least, whatever its size."""


class Device(Figures):
    """One GPU, or one core of a CPU."""

    name: str
    title: str
    bf16: Positive
    """FLOP/s of dense products."""
    float32: Positive
    bandwidth: Positive
    """Bytes a second of its memory."""
    memory: Annotated[float, Field(ge=0)]
    """Bytes."""
    link: Positive
    """Bytes a second to other devices, one way."""
    source: str

    @property
    def is_cpu(self) -> bool:
        return self.name == "cpu"


class Hardware(Figures):
    """What a plan is made for. The cores of a CPU count as one device with all the memory."""

    device: Device
    count: Annotated[int, Field(ge=1)]
    """GPUs, or CPU cores."""

    @property
    def world(self) -> int:
        """Processes that train together."""
        return 1 if self.device.is_cpu else self.count

    def flops(self, element_bytes: int) -> float:
        """Peak of one process, in FLOP/s."""
        peak = self.device.bf16 if element_bytes == 2 else self.device.float32
        return peak * (self.count if self.device.is_cpu else 1)

    def shares(self, element_bytes: int, served: bool = False) -> Utilisation:
        """What is counted on.

        Args:
            served: a serving engine does the work.
        """
        kind = "gpu" if element_bytes == 2 else "gpu_float32"
        if served or self.device.is_cpu:
            kind = "cpu" if self.device.is_cpu else "served"
        return Utilisation.model_validate(_table()["utilisation"][kind])

    @property
    def bandwidth(self) -> float:
        """Memory bandwidth of one process, in bytes a second."""
        return self.device.bandwidth * (self.count if self.device.is_cpu else 1)

    def __str__(self) -> str:
        unit = "CPU cores" if self.device.is_cpu else self.device.title
        return f"{self.count} x {unit}"


def device_names() -> list[str]:
    return list(_table()["devices"])


def hardware(name: str, count: int | None = None, memory: float | None = None) -> Hardware:
    """A number of devices of one kind.

    Args:
        count: one when empty; of `cpu`, the cores of this machine.
        memory: bytes of a device, in place of the table's; of `cpu`, this machine's when empty.

    Raises:
        ValueError: no such device.
    """
    table = _table()
    if name not in table["devices"]:
        raise ValueError(f"no device {name!r}; expected one of {', '.join(table['devices'])}")
    device = Device.model_validate({"name": name, **table["devices"][name]})
    if device.is_cpu:
        count = count or os.cpu_count()
        memory = memory or machine_memory()
    if memory is not None:
        device = device.model_copy(update={"memory": memory})
    return Hardware(device=device, count=count or 1)


def machine_memory() -> int:
    """Bytes of memory that this process may use: the machine's, or its container's limit."""
    total = int(psutil.virtual_memory().total)
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            said = Path(limit).read_text().strip()
        except OSError:
            continue
        if said.isdigit():
            total = min(total, int(said))
    return total


@functools.cache
def _table() -> dict[str, dict[str, dict[str, float | str]]]:
    text = resources.files("eagle3.plan").joinpath("hardware.yaml").read_text()
    table: dict[str, dict[str, dict[str, float | str]]] = yaml.safe_load(text)
    return table
