"""What a figure was made with: the machine, and the versions of the libraries that decide it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")


def hardware() -> dict[str, Any]:
    """What machine this is, as far as it matters for reading a figure."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = [x.split(":", 1)[1] for x in info.read_text().splitlines() if "model name" in x]
        cpu = names[0].strip() if names else cpu
    facts: dict[str, Any] = {"cpu": cpu, "cores": os.cpu_count(), "platform": platform.platform()}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("updraft", *LIBRARIES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
