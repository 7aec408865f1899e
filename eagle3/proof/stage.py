"""The `prove` stage: greedy in float32; in half precision too, where the target runs in it; sampled
text, where the recipe asks for it. Resumes by prompt.

A part that is not asked for, or has no meaning on this machine, is left out of the certificate:
it names what this run did, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import torch

from eagle3.bench.prompts import HeldOut, heldout_prompts
from eagle3.data.checks import check_unchanged
from eagle3.data.local import (
    default_device,
    open_target,
    target_dir,
    target_facts,
    working_type,
)
from eagle3.data.records import Journal
from eagle3.decode.engine import Engine
from eagle3.decode.linear import speed_up
from eagle3.decode.tree import Shape
from eagle3.drafters.eagle3 import Eagle3
from eagle3.export.given import exported
from eagle3.proof import samples
from eagle3.proof.certificate import certificate
from eagle3.proof.greedy import PromptProof, prove_prompt
from eagle3.proof.page import page
from eagle3.proof.reference import Reference
from eagle3.run import Context, read_manifest, write_json

R = TypeVar("R", PromptProof, samples.Samples)


def prove(ctx: Context) -> None:
    """Write `certificate.json` and `certificate.md`. Not lossless is a verdict, not a failure.

    Raises:
        BadInput: the target's files or the draft are not those that the run made or found.
    """
    config = ctx.config.recipe.prove
    check_unchanged(target_dir(ctx), target_facts(ctx))
    prompts = heldout_prompts(ctx.inputs["regenerate"] / "responses.jsonl", config.prompts)
    exact = _Sides(ctx, exact=True)
    found = _journal(ctx, "prompts", PromptProof, prompts, exact.prove)
    half_type = working_type(ctx, default_device())
    in_half = None
    if half_type != torch.float32:
        in_half = _journal(ctx, "half", PromptProof, prompts, _Sides(ctx, exact=False).prove)
    drawn = None
    if config.samples:
        drawn = _journal(ctx, "samples", samples.Samples, samples.shortest(prompts), exact.sample)
    written = certificate(ctx, shape(ctx), found, half_type, in_half, drawn)
    write_json(ctx.out / "certificate.json", written)
    (ctx.out / "certificate.md").write_text(page(written))
    keys = ("verdict", "prompts", "tokens", "mismatches", "near_ties", "dtype")
    ctx.summary |= {key: written[key] for key in keys}
    if written["verdict"] != "lossless":
        ctx.progress.warning(
            f"not lossless: {written['mismatches']} of {len(prompts)} prompts differ, "
            f"{written['near_ties']} near ties in {written['tokens']} tokens; all parts are in "
            "certificate.md"
        )


def shape(ctx: Context) -> Shape:
    """The proof drafts exactly as the benchmark does."""
    config = ctx.config.recipe.benchmark
    if config.chooses:
        config = config.chosen(read_manifest(ctx.inputs["benchmark"])["summary"])
    return Shape(*config.shape)


def _journal(
    ctx: Context,
    name: str,
    kind: type[R],
    prompts: Sequence[HeldOut],
    work: Callable[[Sequence[HeldOut]], Iterator[R]],
) -> list[R]:
    """One record a prompt; those of an earlier run that was stopped are kept."""
    with closing(Journal(ctx.out / "work" / f"{name}.jsonl", kind)) as journal:
        done = {record.prompt_sha256 for record in journal.records}
        todo = [prompt for prompt in prompts if prompt.sha256 not in done]
        ctx.progress.progress(len(prompts) - len(todo), len(prompts), "prompt", name)
        for record in work(todo):
            journal.append(record)
            ctx.progress.progress(len(journal.records), len(prompts), "prompt", name)
        return list(journal.records)


@dataclass
class _Sides:
    """The engine with the draft, and the reference; loaded when there is something to do."""

    ctx: Context
    exact: bool
    """In float32; else in the type in which the target runs on this machine."""
    _loaded: tuple[Engine, Reference] | None = None

    def prove(self, prompts: Sequence[HeldOut]) -> Iterator[PromptProof]:
        for prompt in prompts:
            self.ctx.check_stop("proven prompts are kept")
            engine, reference = self._load()
            most = self.ctx.config.recipe.prove.max_new_tokens
            room = min(most, engine.target.context - len(prompt.ids))
            yield prove_prompt(engine, reference, prompt, room)

    def sample(self, prompts: Sequence[HeldOut]) -> Iterator[samples.Samples]:
        recipe = self.ctx.config.recipe
        for prompt in prompts:
            self.ctx.check_stop("proven prompts are kept")
            engine, reference = self._load()
            together = Engine(engine.target, engine.drafter, samples.SLOTS)
            yield samples.draw(together, reference, prompt, recipe.prove.samples, recipe.seed)

    def _load(self) -> tuple[Engine, Reference]:
        if self._loaded is None:
            target = open_target(self.ctx, exact=self.exact)
            draft = exported(self.ctx, target)
            speed_up(target.model, draft)
            reference = Reference(
                target_dir(self.ctx), target.eos_ids(), str(target.device), target.dtype
            )
            self._loaded = Engine(target, Eagle3(draft, shape(self.ctx))), reference
        return self._loaded
