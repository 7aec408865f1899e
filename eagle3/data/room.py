"""Does a run fit this machine? `resolve` finds out before anything long has begun."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from eagle3.config import RunConfig, TargetRef
from eagle3.errors import BadInput, DiskFull
from eagle3.plan import (
    Hardware,
    Plan,
    TargetShape,
    UnknownShape,
    hardware,
    make_plan,
    read_config,
    workload,
)

CERTAIN = 1.5
"""A run that is planned to take this much more memory than there is, is refused; one that takes
less may be lucky, and is told."""


def check_room(
    run: Path,
    config: RunConfig,
    folder: Path,
    facts: dict[str, Any],
    prompts: int,
    warn: Callable[[str], None],
) -> None:
    """The plan of a run, with features as its recipe has them, must fit this machine.

    Args:
        folder: the target's files.
        facts: the content of `target.json`.

    Raises:
        DiskFull: says how much is needed and how much is free.
        BadInput: the memory cannot be enough.
    """
    plan = plan_here(config, folder, facts, prompts)
    mode = min(
        (m for m in plan.modes if m.features == config.recipe.extract.mode),
        key=lambda m: m.memory_bytes,
    )
    need, free = mode.disk_bytes, shutil.disk_usage(run).free
    if need > free:
        raise DiskFull(
            f"this run needs up to {need / 1e9:.1f} GB under {run}, where "
            f"{free / 1e9:.1f} GB are free",
            "free some space, or lower prompts.limit, regenerate.token_budget or "
            "regenerate.max_new_tokens",
        )
    there = plan.hardware.device.memory
    if mode.memory_bytes <= there:
        return
    message = (
        f"this run may need {mode.memory_bytes / 1e9:.1f} GB of memory, where there are "
        f"{there / 1e9:.1f} GB"
    )
    if mode.memory_bytes > CERTAIN * there:
        hint = "take a smaller target, or lower train.batch_tokens (eagle3 plan says more)"
        raise BadInput(message, hint)
    warn(message)


def plan_here(config: RunConfig, folder: Path, facts: dict[str, Any], prompts: int) -> Plan:
    """The plan of a run on this machine."""
    try:
        ref = TargetRef(kind="file", location=str(folder))
        shape = TargetShape.from_config(read_config(ref))
    except UnknownShape:  # a family that is not counted: its weights have been
        shape = TargetShape.from_facts(facts)
    heldout = min(config.prompts.heldout, prompts)
    work = workload(config.recipe, prompts - heldout, heldout)
    return make_plan(config.recipe, shape, work, this_machine())


def this_machine() -> Hardware:
    """The GPUs of this machine by their memory, or its CPU."""
    if not torch.cuda.is_available():
        return hardware("cpu")
    memory = min(
        torch.cuda.get_device_properties(i).total_memory for i in range(torch.cuda.device_count())
    )
    # Which GPU it is decides how long the run takes, not whether it fits.
    return hardware("h100", torch.cuda.device_count(), memory)
