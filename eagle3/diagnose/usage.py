"""Causes that lie in how right tensors are used: layers, norms, rotary positions, heads, type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from eagle3 import fit
from eagle3.diagnose.case import Case, Sign, Trial
from eagle3.diagnose.reading import NORMS
from eagle3.target import default_capture_layers

THETAS = (10_000.0, 100_000.0, 500_000.0, 1_000_000.0, 5_000_000.0)
"""Rotary bases in use."""


def wanted_layers(layers: tuple[int, int, int], count: int) -> set[int]:
    """Layers whose states are worth keeping: the given and the usual ones, and their neighbours."""
    usual = default_capture_layers(count) if count >= 7 else ()
    near = {k + by for k in (*layers, *usual) for by in (-1, 0, 1)}
    return {k for k in near if 0 <= k <= count} | {min(max(k, 0), count) for k in layers}


def layers(case: Case) -> Iterator[Trial | Sign]:
    """Features of other layers than in training: all one early or late, one of them, the usual."""
    now, count = case.reading.config.capture_layers, case.target.num_layers
    tried = [default_capture_layers(count)] if count >= 7 else []
    low, mid, high = now
    for by in (-1, 1):
        tried += [(low + by, mid, high), (low, mid + by, high), (low, mid, high + by)]
    tried += [(low + by, mid + by, high + by) for by in (-1, 1)]
    for found in dict.fromkeys(tried):
        ascending = found[0] < found[1] < found[2]
        if found != now and ascending and case.answers.kept.issuperset(found):
            text = f"layers {_listed(found)} in place of {_listed(now)}"
            yield Trial("captured layers", text, case.reading.having(capture_layers=found))


def norms(case: Case) -> Iterator[Trial | Sign]:
    """What is fed back, and what the residual stream is, before or after a norm."""
    said = {
        "norm_output": "the output fed back after the norm",
        "norm_before_residual": "the normed feature as the residual stream",
        "norm_before_fc": "all features normed before fc",
        "fc_norm": "each feature normed before fc",
    }
    for norm in NORMS:
        on = norm in case.reading.norms
        reading = replace(case.reading, norms=case.reading.norms ^ {norm})
        yield Trial("feedback and norms", ("not " if on else "") + said[norm], reading)


def rope(case: Case) -> Iterator[Trial | Sign]:
    """Rotary base, scaling or length other than in training, or rows in the interleaved order."""
    now = dict(case.reading.config.rope_parameters)
    theirs = fit.rope(case.target.config)
    if now != theirs:
        text = f"the target's: {_said(theirs)} in place of {_said(now)}"
        yield Trial("RoPE", text, case.reading.having(rope_parameters=theirs))
    for theta in THETAS:
        if theta not in (now["rope_theta"], theirs["rope_theta"]):
            tried = now | {"rope_theta": theta}
            text = f"{_said(tried)} in place of {_said(now)}"
            yield Trial("RoPE", text, case.reading.having(rope_parameters=tried))
    if now["rope_type"] != "default":
        tried = {"rope_type": "default", "rope_theta": now["rope_theta"]}
        yield Trial("RoPE", "unscaled", case.reading.having(rope_parameters=tried))
    yield from _interleaved(case)
    length, context = case.reading.config.max_position_embeddings, case.target.context
    if length < context:
        text = f"max_position_embeddings {length}, the target's is {context}"
        yield Sign("RoPE", f"{text}: some engines draft nothing beyond it")
        reading = case.reading.having(max_position_embeddings=context)
        yield Trial("RoPE", f"a length of {context} in place of {length}", reading)


def heads(case: Case) -> Iterator[Trial | Sign]:
    """The config splits q, k and v into other heads than they were trained in."""
    config = case.reading.config
    query, groups = (
        n * config.head_dim for n in (config.num_attention_heads, config.num_key_value_heads)
    )
    for dim in sorted({fit.heads(case.target.config)[2], *fit.HEAD_DIMS} - {config.head_dim}):
        if query % dim == 0 and groups % dim == 0 and dim % 2 == 0:
            reading = case.reading.having(
                num_attention_heads=query // dim, num_key_value_heads=groups // dim, head_dim=dim
            )
            yield Trial("heads", f"head_dim {dim} in place of {config.head_dim}", reading)


def overflow(case: Case) -> Iterator[Trial | Sign]:
    """In float16, numbers beyond 65504 are infinite: some targets' features are that large."""
    if case.reading.dtype == torch.float16:
        reading = replace(case.reading, dtype=torch.float32)
        yield Trial("dtype overflow", "float32 (or bfloat16) in place of float16", reading)


def _interleaved(case: Case) -> Iterator[Trial]:
    """Rows of q and k in pairs, as Meta's files have them, in place of halves, and the other way
    round."""
    dim = case.reading.config.head_dim
    pairs = torch.arange(dim).view(-1, 2).T.flatten()
    names = [f"midlayer.self_attn.{name}.weight" for name in ("q_proj", "k_proj")]
    found = {name: case.reading.tensors[name] for name in names if name in case.reading.tensors}
    if len(found) < 2 or any(len(t) % dim for t in found.values()):
        return
    for text, places in (("pairs", pairs), ("halves", pairs.argsort())):
        turned = {
            name: t.unflatten(0, (-1, dim))[:, places].flatten(0, 1) for name, t in found.items()
        }
        yield Trial("RoPE", f"q and k rows taken for {text}", case.reading.holding(**turned))


def _listed(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers))


def _said(rope: dict[str, Any]) -> str:
    kind = rope["rope_type"]
    return f"base {rope['rope_theta']:,.0f}" + ("" if kind == "default" else f", {kind}")
