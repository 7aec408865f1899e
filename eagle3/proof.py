"""The `prove` stage: greedy output with the draft equals the target's own, token for token.

The reference is independent of this engine: a freshly loaded model, transformers' own attention,
linears, cache and `generate`. Kernels may round differently for different numbers of rows, so at a
first difference the logits there are computed again in float64: it passes, as a *near tie*, only if
both tokens lie within `TIE_MARGIN` of the largest logit. Near ties are listed, and may come at most
once in 1,000 tokens. Anything else is a mismatch, and the draft is not lossless.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import GenerationConfig

from eagle3.bench.prompts import HeldOut, heldout_prompts
from eagle3.data.local import open_target, target_dir, target_facts
from eagle3.data.records import Journal, Record
from eagle3.decode.engine import Engine
from eagle3.decode.linear import speed_up
from eagle3.decode.request import Request
from eagle3.decode.tree import Shape
from eagle3.drafters.eagle3 import Eagle3
from eagle3.export import official
from eagle3.load import load_model
from eagle3.run import Context, hardware, sha256_file, versions, write_json

TIE_MARGIN = 1e-5
"""Logit distance, in float64, below which two tokens count as tied."""

TOKENS_PER_TIE = 1000

_HASHES = ("weights_sha256", "tokenizer_sha256", "template_sha256", "config_sha256")


class Difference(Record):
    """A place where the two outputs differ, and how close the two tokens' logits are there."""

    position: int
    """Index into the new tokens."""
    with_draft: int | None
    """Token id; empty where this output had already ended."""
    reference: int | None
    margin: float | None
    """Largest float64 logit less the smaller of the two tokens' own; empty without two tokens."""


class PromptProof(Record):
    """The comparison of one prompt."""

    id: str
    prompt_sha256: str
    prompt_tokens: int
    new_tokens: int
    rounds: int
    """Target forwards that decoding with the draft took after the prefill."""
    verdict: Literal["equal", "near_tie", "mismatch"]
    near_ties: list[Difference]
    mismatch: Difference | None


class Reference:
    """The target as stock transformers runs it."""

    def __init__(self, path: Path, eos_ids: frozenset[int], device: str = "cpu") -> None:
        self._path, self._device = path, device
        self._eos_ids = sorted(eos_ids)
        self._model = self._load(torch.float32)

    def greedy(self, ids: list[int], max_new_tokens: int) -> list[int]:
        """New tokens after `ids`, an EOS included; none of the model's own generation settings."""
        config = GenerationConfig(
            do_sample=False,
            num_beams=1,
            max_new_tokens=max_new_tokens,
            eos_token_id=self._eos_ids or None,
            pad_token_id=self._eos_ids[0] if self._eos_ids else None,
        )
        self._model.generation_config = config  # unset fields would be filled in from it
        ids_1P = torch.tensor([ids], device=self._device)
        mask_1P = torch.ones_like(ids_1P)
        out = self._model.generate(ids_1P, attention_mask=mask_1P, generation_config=config)
        return out[0, len(ids) :].tolist()

    @torch.inference_mode()
    def margin(self, ids: list[int], tokens: tuple[int, int]) -> float:
        """How far the worse of two tokens lies below the largest logit after `ids`, in float64."""
        logits_V = self._exact(torch.tensor([ids], device=self._device)).logits[0, -1]
        return float(logits_V.max() - logits_V[list(tokens)].min())

    @cached_property
    def _exact(self) -> Any:
        return self._load(torch.float64)

    def _load(self, dtype: torch.dtype) -> Any:
        return load_model(self._path, dtype, self._device)[0]


def prove(ctx: Context) -> None:
    """Write `certificate.json`. Not lossless is a verdict, not a failure; resumes by prompt."""
    config = ctx.config.recipe.prove
    prompts = heldout_prompts(ctx.inputs["regenerate"] / "responses.jsonl", config.prompts)
    with closing(Journal(ctx.out / "work" / "prompts.jsonl", PromptProof)) as journal:
        done = {proof.prompt_sha256 for proof in journal.records}
        todo = [prompt for prompt in prompts if prompt.sha256 not in done]
        ctx.progress.progress(len(prompts) - len(todo), len(prompts), "prompt")
        for proof in _proofs(ctx, todo):
            journal.append(proof)
            ctx.progress.progress(len(journal.records), len(prompts), "prompt", proof.verdict)
    certificate = _certificate(ctx, journal.records)
    write_json(ctx.out / "certificate.json", certificate)
    keys = ("verdict", "prompts", "tokens", "mismatches", "near_ties", "dtype")
    ctx.summary |= {key: certificate[key] for key in keys}
    if certificate["verdict"] != "lossless":
        ctx.progress.warning(
            f"not lossless: {certificate['mismatches']} of {len(prompts)} prompts differ, "
            f"{certificate['near_ties']} near ties in {certificate['tokens']} tokens"
        )


def _proofs(ctx: Context, prompts: list[HeldOut]) -> Iterator[PromptProof]:
    if not prompts:
        return
    target = open_target(ctx, exact=True)
    draft = official.load(
        ctx.inputs["export"] / "draft", target.embed.weight.detach(), target.num_layers
    )
    speed_up(target.model, draft)
    engine = Engine(target, Eagle3(draft, _shape(ctx)))
    reference = Reference(target_dir(ctx), target.eos_ids(), str(target.device))
    limit = target.context
    for prompt in prompts:
        ctx.check_stop("proven prompts are kept")
        cap = min(ctx.config.recipe.prove.max_new_tokens, limit - len(prompt.ids))
        yield prove_prompt(engine, reference, prompt, cap)


def prove_prompt(
    engine: Engine, reference: Reference, prompt: HeldOut, max_new_tokens: int
) -> PromptProof:
    """Decode one prompt with the draft and compare it with the reference, near ties passed over."""
    eos_ids = engine.target.eos_ids()
    [ours] = engine.generate([Request(prompt.ids, max_new_tokens, stop_ids=eos_ids)])
    ties: list[Difference] = []
    mismatch: Difference | None = None
    same = 0
    while same < max_new_tokens and (not same or ours.tokens[same - 1] not in eos_ids):
        prefix = [*prompt.ids, *ours.tokens[:same]]
        theirs = [*ours.tokens[:same], *reference.greedy(prefix, max_new_tokens - same)]
        found = _first_difference(ours.tokens, theirs, reference, prompt.ids)
        if found is None:
            break
        if found.margin is None or found.margin >= TIE_MARGIN:
            mismatch = found
            break
        ties.append(found)
        same = found.position + 1
    return PromptProof(
        id=prompt.id,
        prompt_sha256=prompt.sha256,
        prompt_tokens=len(prompt.ids),
        new_tokens=len(ours.tokens),
        rounds=ours.rounds,
        verdict="mismatch" if mismatch else "near_tie" if ties else "equal",
        near_ties=ties,
        mismatch=mismatch,
    )


def _first_difference(
    ours: list[int], theirs: list[int], reference: Reference, prompt_ids: list[int]
) -> Difference | None:
    if ours == theirs:
        return None
    shorter = min(len(ours), len(theirs))
    at = next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)
    ours_at = ours[at] if at < len(ours) else None
    theirs_at = theirs[at] if at < len(theirs) else None
    margin = None
    if ours_at is not None and theirs_at is not None:
        margin = reference.margin([*prompt_ids, *ours[:at]], (ours_at, theirs_at))
    return Difference(position=at, with_draft=ours_at, reference=theirs_at, margin=margin)


def verdict(proofs: list[PromptProof]) -> Literal["lossless", "not_lossless"]:
    """Lossless: no mismatch, and at most one near tie in each started 1,000 tokens."""
    tokens = sum(p.new_tokens for p in proofs)
    ties = sum(len(p.near_ties) for p in proofs)
    mismatches = any(p.mismatch for p in proofs)
    allowed = -(-tokens // TOKENS_PER_TIE)
    return "not_lossless" if mismatches or ties > allowed else "lossless"


def _shape(ctx: Context) -> Shape:
    """The proof drafts exactly as the benchmark does."""
    config = ctx.config.recipe.benchmark
    return Shape(config.depth, config.top_k, config.total_tokens)


def _certificate(ctx: Context, proofs: list[PromptProof]) -> dict[str, Any]:
    facts, shape = target_facts(ctx), _shape(ctx)
    draft = ctx.inputs["export"] / "draft"
    return {
        "verdict": verdict(proofs),
        "prompts": len(proofs),
        "tokens": sum(p.new_tokens for p in proofs),
        "mismatches": sum(p.mismatch is not None for p in proofs),
        "near_ties": sum(len(p.near_ties) for p in proofs),
        "dtype": "float32",
        "rule": {
            "reference": "transformers generate, greedy, freshly loaded, its own attention",
            "tie_margin": TIE_MARGIN,
            "tokens_per_tie": TOKENS_PER_TIE,
        },
        "settings": {
            "max_new_tokens": ctx.config.recipe.prove.max_new_tokens,
            "depth": shape.depth,
            "top_k": shape.top_k,
            "drafted_nodes": shape.kept,
            "temperature": 0,
        },
        "seed": ctx.config.recipe.seed,
        "target": {"resolved": facts["resolved"], **{name: facts[name] for name in _HASHES}},
        "draft": {f"{p.name}_sha256": sha256_file(p) for p in sorted(draft.iterdir())},
        "versions": versions(),
        "hardware": hardware(),
        "by_prompt": [proof.model_dump(mode="json") for proof in proofs],
    }
