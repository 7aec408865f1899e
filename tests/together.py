"""Processes that do one thing together, as `torchrun` would start them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

PROCESSES = 2


def run_together(arguments: list[str], **environment: str) -> tuple[list[int], list[str]]:
    """Exit codes and outputs of Python processes with these arguments."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    both = {"WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, *arguments],
            env=os.environ | both | environment | {"RANK": str(n), "LOCAL_RANK": str(n)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for n in range(PROCESSES)
    ]
    outputs = [process.communicate(timeout=300)[0] for process in started]
    return [process.returncode for process in started], outputs
