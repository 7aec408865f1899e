"""Fail, and end them, when processes of a virtual environment still run: `leftovers.py VENV`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil


def leftovers(venv: Path) -> list[psutil.Process]:
    """Other processes whose command line names a file of the environment."""
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if process.pid != os.getpid()
        and any(f"{venv}/" in word for word in process.info["cmdline"] or ())
    ]


def main() -> int:
    found = leftovers(Path(sys.argv[1]))
    for process in found:
        sys.stderr.write(f"left behind: {process.pid} {' '.join(process.info['cmdline'])}\n")
        process.kill()
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
