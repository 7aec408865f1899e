"""A draft written in one format for the engines that load it, and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from eagle3.errors import BadInput
from eagle3.export import fits, gguf, imported, official, openvino, speculators
from eagle3.export.official import Stored
from eagle3.load import load_config


def write(
    draft: Path,
    target: Path,
    out: Path,
    kind: str,
    engines: tuple[str, ...],
    dtype: gguf.Dtype | None,
    name: str,
) -> dict[str, Any]:
    """Write one format and read it back.

    Args:
        draft: a directory of the official layout.
        kind: `official`, `speculators`, `gguf` or `openvino`.
        engines: those that it is checked for.
        dtype: of the weights; the draft's own where None.
        name: the target's, as an engine will be told.

    Returns:
        What was written, for a person to read.

    Raises:
        BadInput: it is no draft, or has what an engine lacks; nothing is written then.
    """
    whole = load_config(target)
    config = whole.get_text_config()
    n = config.num_hidden_layers
    try:
        stored = official.read(draft, n)
    except (ValueError, KeyError) as e:
        raise BadInput(
            f"{draft} is no draft: {e}", "see `eagle3 import` for others' layouts"
        ) from e
    for engine in engines:
        fits.check(stored.config, engine, config, n)
    dtype = dtype or _dtype(stored)
    torch_dtype: torch.dtype = getattr(torch, dtype)
    _check_range(stored, torch_dtype)
    said: dict[str, Any] = {"format": kind, "for": list(engines), "dtype": dtype, "path": str(out)}
    match kind:
        case "official":
            official.write(stored, out, n, torch_dtype)
        case "speculators":
            speculators.write(
                stored, out, n, torch_dtype, target=name, architectures=whole.architectures or []
            )
        case "gguf":
            said["path"] = str(out / "draft.gguf")
            gguf.write(stored, out / "draft.gguf", dtype)
        case "openvino":
            openvino.write(stored, out, n, torch_dtype, target)
            said["next"] = f"see {out / openvino.NOTE}: the IR is made by optimum-cli"
    _read_back(stored, Path(said["path"]), target, torch_dtype)
    return said


def _dtype(stored: Stored) -> gguf.Dtype:
    found: gguf.Dtype = str(stored.tensors["fc.weight"].dtype).removeprefix("torch.")  # type: ignore[assignment]
    return found


def _check_range(stored: Stored, dtype: torch.dtype) -> None:
    lost = [n for n, t in stored.tensors.items() if not bool(torch.isfinite(t.to(dtype)).all())]
    if lost:
        raise BadInput(f"{', '.join(lost)} overflow in {dtype}", "choose another --dtype")


def _read_back(stored: Stored, written: Path, target: Path, dtype: torch.dtype) -> None:
    """What an engine will find is the draft, in another type at most."""
    found = imported.read(written, target).stored
    assert found.config == stored.config, f"{written}: {found.config} is not {stored.config}"
    for name, tensor in stored.tensors.items():
        there = found.tensors[name]
        floats = tensor.is_floating_point()
        same = (
            torch.equal(tensor.to(dtype).float(), there.to(dtype).float())
            if floats
            else (torch.equal(tensor, there))
        )
        assert same, f"{written}: {name} is not the draft's"
