"""What GPUs this machine has, asked of the driver: no CUDA is loaded into the worker for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from jobs.needs import MAX_GPUS, Gpus, parse_gpus
from jobs.settings import Settings

DRIVER = Path("/proc/driver/nvidia/gpus")
ASK = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
ASK_S = 20.0
"""The driver takes seconds to wake where no process keeps it up."""

BRANDS = frozenset({"nvidia", "geforce", "quadro", "tesla", "graphics", "device", "titan"})
VISIBLE = "CUDA_VISIBLE_DEVICES"


def gpus_here(settings: Settings) -> Gpus:
    """What this worker offers: what the settings say, or the most frequent kind of the GPUs that it
    may see."""
    if settings.worker_has is not None:
        return parse_gpus(settings.worker_has)
    kinds = Counter(kind_of(name) for name in visible(gpu_names(), os.environ.get(VISIBLE)))
    if not kinds:
        return Gpus()
    kind, count = kinds.most_common(1)[0]
    return Gpus(kind, min(count, MAX_GPUS))


def gpu_names() -> list[str]:
    """The GPUs' names as the driver gives them, in its order."""
    if shutil.which(ASK[0]):
        try:
            said = subprocess.run(ASK, capture_output=True, text=True, timeout=ASK_S, check=True)
        except (subprocess.SubprocessError, OSError):
            return _from_driver()  # a driver and a tool that do not fit each other
        return [line.strip() for line in said.stdout.splitlines() if line.strip()]
    return _from_driver()


def kind_of(name: str) -> str:
    """`h100` of "NVIDIA H100 80GB HBM3", `rtx4090` of "NVIDIA GeForce RTX 4090"."""
    words = [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w and w not in BRANDS]
    if words[:1] in (["rtx"], ["gtx"]) and len(words) > 1:
        return words[0] + words[1]
    return words[0] if words else ""


def visible(names: list[str], said: str | None) -> list[str]:
    """Those of them that CUDA_VISIBLE_DEVICES leaves: all when it is not set. One that it names by
    UUID counts as the first."""
    if said is None:
        return names
    wanted = [part.strip() for part in said.split(",") if part.strip()]
    numbers = [int(part) if part.isdigit() else 0 for part in wanted if part != "-1"]
    return [names[i] for i in numbers if i < len(names)]


def given(count: int, said: str | None) -> str:
    """CUDA_VISIBLE_DEVICES of a child that gets so many of this worker's GPUs."""
    mine = said.split(",") if said else [str(i) for i in range(count)]
    return ",".join(mine[:count])


def _from_driver() -> list[str]:
    files = sorted(DRIVER.glob("*/information")) if DRIVER.is_dir() else []
    lines = (line for path in files for line in path.read_text().splitlines())
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
