"""Training state on disk: safetensors and JSON, no pickle, whole or not there at all.

    work/checkpoint-000120/config.json, model.safetensors    the draft, official layout, float32
    work/checkpoint-000120/optimizer.safetensors             `<parameter>.<name>`, `rng.<device>`
    work/checkpoint-000120/state.json                        step, best, history, recipe
    work/checkpoint-000120/best.safetensors                  the best draft's weights so far
    work/best/config.json, model.safetensors                 the same, where the trainer keeps it

A checkpoint needs nothing beside it: brought to another machine, it goes on there.

Schedule and data position follow from the step: both are pure functions of it and of the recipe.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from eagle3.config.sections import HOUSEKEEPING
from eagle3.draft import Draft
from eagle3.errors import BadInput
from eagle3.export import official
from eagle3.run import Context, read_manifest
from eagle3.train.sharded import load_moments, load_weights
from eagle3.train.warm import draft_content

STATE = "state.json"
OPTIMIZER = "optimizer.safetensors"
BEST = "best.safetensors"
WRITING = "checkpoint-writing"


def save_checkpoint(
    work: Path,
    draft: Draft,
    num_target_layers: int,
    moments: dict[str, torch.Tensor],
    state: dict[str, Any],
    keep: int = 1,
) -> Path:
    """Write a checkpoint of `state["step"]` and drop all but the newest `keep`.

    Args:
        draft: whole, like the moments (`eagle3.train.sharded`): a training goes on from it with
            any number of processes.
    """
    with new_checkpoint(work, state["step"], keep) as writing:
        official.save(draft, writing, num_target_layers, torch.float32)
        save_optimizer(writing, moments)
        (writing / STATE).write_text(json.dumps(state))
        if (work / "best").is_dir():
            _link(work / "best" / official.WEIGHTS, writing / BEST)
    return checkpoints(work)[-1]


@contextmanager
def new_checkpoint(work: Path, step: int, keep: int = 1) -> Iterator[Path]:
    """The folder of a checkpoint to be filled; all but the newest `keep` are dropped then.

    It is filled and synced under another name, then renamed: a full disk or a kill leaves the
    earlier ones as they were.
    """
    final, writing = work / f"checkpoint-{step:06d}", work / WRITING
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir(parents=True)
    try:
        yield writing
        _sync(writing)
    except BaseException:
        shutil.rmtree(writing, ignore_errors=True)  # gives back what a full disk needs most
        raise
    shutil.rmtree(final, ignore_errors=True)
    writing.rename(final)
    for old in checkpoints(work)[:-keep]:
        shutil.rmtree(old)


def checkpoints(work: Path) -> list[Path]:
    """The whole checkpoints, oldest first."""
    return sorted(work.glob("checkpoint-[0-9]*"), key=lambda path: int(path.name.split("-")[1]))


def latest_checkpoint(work: Path) -> Path | None:
    """The newest whole checkpoint."""
    found = checkpoints(work)
    return found[-1] if found else None


def load_checkpoint(
    folder: Path, draft: Draft, optimizer: torch.optim.Optimizer, recipe: dict[str, Any]
) -> dict[str, Any]:
    """Put a checkpoint's weights, moments and random state back; returns its state.

    Args:
        recipe: what decides this training's result, by dotted name; `state["recipe"]` of a
            checkpoint that it may go on from.

    Raises:
        BadInput: the checkpoint is of another recipe; says which fields differ.
    """
    state: dict[str, Any] = json.loads((folder / STATE).read_text())
    _same_recipe(folder, state.get("recipe", {}), json.loads(json.dumps(recipe)))
    load_weights(draft, official.read(folder).tensors)
    load_optimizer(folder, optimizer)
    return state


def save_optimizer(folder: Path, moments: dict[str, torch.Tensor]) -> None:
    """Keep an optimiser's moments (`eagle3.train.sharded`), and the state of random numbers."""
    save_file(moments | _random_states(), folder / OPTIMIZER)


def load_optimizer(folder: Path, optimizer: torch.optim.Optimizer) -> None:
    """Put back what `save_optimizer` kept."""
    found = load_file(folder / OPTIMIZER)
    for key in [key for key in found if key.startswith("rng.")]:
        _restore_random(key.removeprefix("rng."), found.pop(key))
    load_moments(optimizer, found)


def deciding(ctx: Context) -> dict[str, Any]:
    """What decides the result, by dotted name: a checkpoint goes on only where all of it agrees."""
    recipe = ctx.config.recipe
    section = recipe.train.model_dump(mode="json", exclude=set(HOUSEKEEPING))
    if recipe.train.start_from is not None:
        section["start_from"] = draft_content(Path(recipe.train.start_from))
    return flat({"train": section}) | {
        "seed": recipe.seed,
        "benchmark.depth": recipe.draft_depth,
        "features": read_manifest(ctx.inputs["extract"])["outputs_digest"],
    }


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, dict)
        out |= flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value}
    return out


def _same_recipe(folder: Path, there: dict[str, Any], here: dict[str, Any]) -> None:
    unset = "(not set)"
    differing = [
        f"{name} was {there.get(name, unset)!r} and is {here.get(name, unset)!r}"
        for name in sorted(there.keys() | here.keys())
        if there.get(name, unset) != here.get(name, unset)
    ]
    if differing:
        raise BadInput(
            f"the checkpoint {folder} was made by another recipe: {'; '.join(differing)}",
            "put the recipe back, or remove the checkpoint to train from the start",
        )


def _random_states() -> dict[str, torch.Tensor]:
    states = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        for n, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"rng.cuda:{n}"] = state
    return states


def _restore_random(device: str, state: torch.Tensor) -> None:
    """Devices that this machine lacks are passed over; training draws from them nothing."""
    if device == "cpu":
        torch.set_rng_state(state)
    elif torch.cuda.is_available() and int(device.split(":")[1]) < torch.cuda.device_count():
        torch.cuda.set_rng_state(state, device)


def _sync(folder: Path) -> None:
    """Have the disk hold every file before the folder gets its name."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def save_best(work: Path, draft: Draft, num_target_layers: int) -> None:
    """Keep these weights as the best so far."""
    writing = work / "best-writing"
    shutil.rmtree(writing, ignore_errors=True)
    official.save(draft, writing, num_target_layers, torch.float32)
    shutil.rmtree(work / "best", ignore_errors=True)
    writing.rename(work / "best")


def restore_best(work: Path, checkpoint: Path | None) -> None:
    """Make `work/best` what it was at a checkpoint; nothing when there is none, or no best yet."""
    shutil.rmtree(work / "best", ignore_errors=True)
    if checkpoint is not None and (checkpoint / BEST).is_file():
        (work / "best").mkdir()
        _link(checkpoint / BEST, work / "best" / official.WEIGHTS)
        _link(checkpoint / "config.json", work / "best" / "config.json")


def _link(there: Path, here: Path) -> None:
    """The same file under a second name, or a copy where the file system has no such thing."""
    try:
        os.link(there, here)
    except OSError:
        shutil.copyfile(there, here)
