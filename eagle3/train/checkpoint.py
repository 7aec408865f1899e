"""Training state on disk: safetensors and JSON, no pickle, whole or not there at all.

work/checkpoint-000120/{config.json, model.safetensors, optimizer.safetensors, state.json}
work/best/{config.json, model.safetensors}
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from eagle3.draft import Draft
from eagle3.export import official


def save_checkpoint(
    work: Path,
    draft: Draft,
    num_target_layers: int,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
) -> Path:
    """Write a checkpoint of `state["step"]` under a temporary name, rename it, drop older ones."""
    final = work / f"checkpoint-{state['step']:06d}"
    temporary = work / "checkpoint-writing"
    shutil.rmtree(temporary, ignore_errors=True)
    official.save(draft, temporary, num_target_layers, torch.float32)
    moments = {
        f"{index}.{name}": value.detach().contiguous()
        for index, slot in optimizer.state_dict()["state"].items()
        for name, value in slot.items()
    }
    save_file(moments, temporary / "optimizer.safetensors")
    (temporary / "state.json").write_text(json.dumps(state))
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    for old in work.glob("checkpoint-*"):
        if old != final:
            shutil.rmtree(old)
    return final


def latest_checkpoint(work: Path) -> Path | None:
    """The newest whole checkpoint."""
    found = sorted(work.glob("checkpoint-[0-9]*"))
    return found[-1] if found else None


def load_checkpoint(folder: Path, draft: Draft, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put a checkpoint's weights and moments back; returns its state."""
    draft.load_state_dict(load_file(folder / official.WEIGHTS), strict=True)
    slots: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in load_file(folder / "optimizer.safetensors").items():
        index, name = key.split(".", 1)
        slots.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": slots, "param_groups": groups})
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return state


def save_best(work: Path, draft: Draft, num_target_layers: int) -> None:
    """Keep these weights as the best so far."""
    temporary = work / "best-writing"
    shutil.rmtree(temporary, ignore_errors=True)
    official.save(draft, temporary, num_target_layers, torch.float32)
    best, before = work / "best", work / "best-before"
    shutil.rmtree(before, ignore_errors=True)
    if best.is_dir():
        best.rename(before)
    temporary.rename(best)
    shutil.rmtree(before, ignore_errors=True)


def restore_best(work: Path) -> None:
    """Put back the best weights of a process that was killed while it replaced them."""
    if not (work / "best").is_dir() and (work / "best-before").is_dir():
        (work / "best-before").rename(work / "best")
