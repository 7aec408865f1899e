"""What the proof says, and what it was made of: target, draft, prompts, code, machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import eagle3
from eagle3.data.local import default_device, target_facts
from eagle3.decode.tree import Shape
from eagle3.proof import samples
from eagle3.proof.greedy import TOKENS_PER_TIE, PromptProof, verdict
from eagle3.proof.tolerance import EXACT_MARGIN, ULPS
from eagle3.provenance import hardware, versions
from eagle3.run import Context, sha256_file, sha256_json

_HASHES = ("weights_sha256", "tokenizer_sha256", "template_sha256", "config_sha256")

_REFERENCE = "transformers generate, greedy, freshly loaded, its own attention"


def certificate(
    ctx: Context,
    shape: Shape,
    exact: Sequence[PromptProof],
    half_type: torch.dtype,
    half: Sequence[PromptProof] | None,
    drawn: Sequence[samples.Samples] | None,
) -> dict[str, Any]:
    """The whole certificate; `half_precision` and `sampling` only where they were proven.

    Its verdict is `lossless` if that of every part is.
    """
    config, facts = ctx.config.recipe.prove, target_facts(ctx)
    draft = ctx.inputs["export"] / "draft"
    parts: dict[str, Any] = {}
    if half is not None:
        rule = {"reference": _REFERENCE, "tie_margin_ulp": ULPS}
        parts["half_precision"] = _greedy(half, half_type) | {"rule": rule}
    if drawn is not None:
        parts["sampling"] = samples.section(drawn, ctx.config.recipe.seed)
    whole = _greedy(exact, torch.float32)
    verdicts = [whole["verdict"], *(part["verdict"] for part in parts.values())]
    return {
        **whole,
        **parts,
        "verdict": "lossless" if set(verdicts) == {"lossless"} else "not_lossless",
        "rule": {
            "reference": _REFERENCE,
            "tie_margin": EXACT_MARGIN,
            "tokens_per_tie": TOKENS_PER_TIE,
        },
        "settings": {
            "max_new_tokens": config.max_new_tokens,
            "depth": shape.depth,
            "top_k": shape.top_k,
            "drafted_nodes": shape.kept,
            "temperature": 0,
            "samples": config.samples,
        },
        "seed": ctx.config.recipe.seed,
        "target": {"resolved": facts["resolved"], **{name: facts[name] for name in _HASHES}},
        "draft": {f"{p.name}_sha256": sha256_file(p) for p in sorted(draft.iterdir())},
        "prompts_sha256": sha256_json([proof.prompt_sha256 for proof in exact]),
        "code_sha256": code_sha256(),
        "versions": versions(),
        "hardware": hardware(),
        "device": default_device(),
    }


def code_sha256() -> str:
    """Of every source file of this package, with its name."""
    root = Path(eagle3.__file__).parent
    files = sorted(root.rglob("*.py"))
    return sha256_json({f.relative_to(root).as_posix(): sha256_file(f) for f in files})


def _greedy(proofs: Sequence[PromptProof], dtype: torch.dtype) -> dict[str, Any]:
    return {
        "verdict": verdict(proofs, dtype),
        "prompts": len(proofs),
        "tokens": sum(p.new_tokens for p in proofs),
        "mismatches": sum(p.mismatch is not None for p in proofs),
        "near_ties": sum(len(p.near_ties) for p in proofs),
        "dtype": str(dtype).removeprefix("torch."),
        "by_prompt": [proof.model_dump(mode="json") for proof in proofs],
    }
