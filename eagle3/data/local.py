"""The resolved target, as the later stages open it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from eagle3.data.records import read_json
from eagle3.decode.linear import speed_up
from eagle3.errors import BadInput
from eagle3.process import processes
from eagle3.run import Context
from eagle3.spread import SpreadTarget, load_rows
from eagle3.target import Target, load_tokenizer


def target_dir(ctx: Context) -> Path:
    """The HF directory that `resolve` found or made on this machine."""
    pointer = ctx.inputs["resolve"] / "local.json"
    path = Path(read_json(pointer)["path"]) if pointer.is_file() else None
    if path is None or not (path / "config.json").is_file():
        raise BadInput("the target's files are not on this machine", f"eagle3 resolve {ctx.run}")
    return path


def target_facts(ctx: Context) -> dict[str, Any]:
    """What `resolve` recorded about the target."""
    facts: dict[str, Any] = read_json(ctx.inputs["resolve"] / "target.json")
    return facts


def capture_layers(ctx: Context) -> tuple[int, int, int]:
    """The captured layers that `resolve` settled on."""
    low, middle, high = target_facts(ctx)["capture_layers"]
    return low, middle, high


def open_tokenizer(ctx: Context) -> PreTrainedTokenizerBase:
    return load_tokenizer(target_dir(ctx))


def open_target(ctx: Context, exact: bool = False) -> Target:
    """The target on a GPU where there is one, with the captured layers of `resolve`.

    In float32 on a CPU, where half precision is slower. On a GPU in the checkpoint's own type, as
    it will be served, unless `exact` asks for float32, as the benchmark and the proof do.
    """
    device = default_device()
    dtype = torch.float32 if exact else working_type(ctx, device)
    if is_spread(ctx):
        return SpreadTarget.load(target_dir(ctx), dtype, device, capture_layers(ctx))
    target = Target.load(target_dir(ctx), dtype, device, capture_layers(ctx))
    speed_up(target.model)
    return target


def open_taught(ctx: Context) -> Target:
    """What training needs of the target, in float32: its embedding and head; all of it where it
    makes the features, too."""
    if makes_features(ctx):
        return open_target(ctx)
    return load_rows(target_dir(ctx), default_device(), capture_layers(ctx))


def makes_features(ctx: Context) -> bool:
    """Whether the target that training has in float32 reads the samples as well; where it would
    read them in another type, or spread, that is a target of its own."""
    online = ctx.config.recipe.extract.mode == "online" and not is_spread(ctx)
    return online and working_type(ctx, default_device()) == torch.float32


def is_spread(ctx: Context) -> bool:
    """Whether the target's layers are spread over this stage's processes."""
    return ctx.config.recipe.extract.sharded and processes() > 1


def working_type(ctx: Context, device: str) -> torch.dtype:
    """The type in which the target answers and is read on a device."""
    dtype: torch.dtype = getattr(torch, target_facts(ctx)["dtype"])
    return torch.float32 if device == "cpu" else dtype


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
