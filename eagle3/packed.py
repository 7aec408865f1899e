"""AWQ and GPTQ checkpoints as the values that they stand for: (integer - zero) * scale.

Both pack 4-bit integers into int32 and share a zero and a scale among a group of inputs. AWQ (its
`gemm` layout) packs along the outputs, in an order of its own; GPTQ packs along the inputs, zeros
less one (format `gptq`) or as they are (`gptq_v2`), and says which group an input belongs to. GPTQ
also has integers of 2 and 8 bits.

Shapes: I inputs and O outputs of a linear layer, G groups, P integers in an int32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from eagle3.data.weights import read_checkpoint

AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in an int32 each of eight neighbours stands."""

PARTS = ("qweight", "qzeros", "scales", "g_idx")


def cannot_unpack(said: Mapping[str, Any]) -> str | None:
    """What of a `quantization_config` of AWQ or GPTQ is not read here; nothing where all is."""
    bits, awq = said.get("bits", said.get("w_bit", 4)), said.get("quant_method") == "awq"
    layout = said.get("version", "gemm") if awq else said.get("checkpoint_format", "gptq")
    if bits not in ((4,) if awq else (2, 4, 8)):
        return f"{bits} bits"
    if str(layout).lower() not in (("gemm",) if awq else ("gptq", "gptq_v2")):
        return f"layout {layout}"
    return None


def unpacked(folder: Path, said: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights of a checkpoint, in a type; whole in memory, as an unquantised model would be.

    Args:
        said: its `quantization_config`.
    """
    stored: dict[str, Tensor] = {}
    for file in read_checkpoint(folder).files:
        stored |= load_file(file)
    found = {name: value for name, value in stored.items() if not _is_part(name)}
    awq = said["quant_method"] == "awq"
    for layer in [n.removesuffix(".qweight") for n in stored if n.endswith(".qweight")]:
        parts = {p: stored[f"{layer}.{p}"] for p in PARTS if f"{layer}.{p}" in stored}
        values_OI = awq_values(parts) if awq else gptq_values(parts, said)
        found[f"{layer}.weight"] = values_OI.to(dtype)
    return found


def awq_values(parts: Mapping[str, Tensor]) -> Tensor:
    """A layer's weight [O, I], float32."""
    whole_IO, zero_GO = (_integers(parts[n], 4, AWQ_ORDER) for n in ("qweight", "qzeros"))
    group = len(whole_IO) // len(zero_GO)
    zero_IO = zero_GO.repeat_interleave(group, 0)
    scale_IO = parts["scales"].float().repeat_interleave(group, 0)
    return ((whole_IO - zero_IO) * scale_IO).T.contiguous()


def gptq_values(parts: Mapping[str, Tensor], said: Mapping[str, Any]) -> Tensor:
    """A layer's weight [O, I], float32."""
    bits = said.get("bits", 4)
    whole_IO = _integers(parts["qweight"].T, bits).T
    zero_GO = _integers(parts["qzeros"], bits)
    if said.get("checkpoint_format", "gptq") == "gptq":
        zero_GO = (zero_GO + 1) & (2**bits - 1)
    group_I = parts.get("g_idx")
    if group_I is None:
        group_I = torch.arange(len(whole_IO)) // (len(whole_IO) // len(zero_GO))
    group_I = group_I.long()
    return ((whole_IO - zero_GO[group_I]) * parts["scales"].float()[group_I]).T.contiguous()


def _integers(packed: Tensor, bits: int, order: tuple[int, ...] | None = None) -> Tensor:
    """[rows, columns / P] int32 to [rows, columns]."""
    shifts_P = torch.arange(0, 32, bits)
    if order is not None:
        shifts_P = shifts_P[list(order)]
    return ((packed[..., None] >> shifts_P) & (2**bits - 1)).flatten(1)


def _is_part(name: str) -> bool:
    return name.rpartition(".")[2] in PARTS
