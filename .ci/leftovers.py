"""Fail, and end them, when processes of a virtual environment still run: `leftovers.py VENV`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil

GRACE_S = 5.0
"""What has been asked to stop may still be about it."""


def leftovers(venv: Path) -> list[psutil.Process]:
    """Other processes whose command line names a file of the environment."""
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        cwd = Path(process.info["cwd"] or "/")
        words = process.info["cmdline"] or ()
        named = any(f"{venv}/" in word or (cwd / word).is_relative_to(venv) for word in words)
        if named and process.pid != os.getpid():
            found.append(process)
    return found


def main() -> int:
    _, left = psutil.wait_procs(leftovers(Path(sys.argv[1])), timeout=GRACE_S)
    for process in left:
        sys.stderr.write(f"left behind: {process.pid} {' '.join(process.info['cmdline'])}\n")
        process.kill()
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
