"""The stage `parity`: the exported draft in every engine, on the run's held-out prompts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3.bench.prompts import HeldOut, heldout_prompts
from eagle3.data.local import target_dir, target_facts
from eagle3.data.records import read_json
from eagle3.engines.engine import Settings
from eagle3.engines.known import engine
from eagle3.parity.check import EngineParity, Parity, check
from eagle3.parity.engines import settled
from eagle3.parity.report import page
from eagle3.run import Context, write_json

NAME = "parity"
ROOM = 8
"""Tokens of context beyond prompt and answer: an engine drafts past the end of an answer."""


def stage(ctx: Context) -> None:
    """Try the draft in the engines of the recipe; a log of each one stays in `logs/`.

    Raises:
        BadInput: an engine that the recipe names is not installed, or does not take the target.
    """
    recipe = ctx.config.recipe
    local = read_json(ctx.inputs["resolve"] / "local.json")
    parameters = target_facts(ctx)["parameters"]
    chosen = settled(recipe.engines, target_dir(ctx), parameters, local.get("engines"))
    parity(ctx, chosen.engines, recipe.parity.prompts, recipe.parity.max_new_tokens)
    ctx.summary["left_out"] = chosen.left_out
    for log in (ctx.out / "work").glob("*/*.log"):
        (ctx.out / "logs").mkdir(exist_ok=True)
        shutil.copyfile(log, ctx.out / "logs" / log.name)


def parity(
    ctx: Context,
    engines: Sequence[str],
    count: int | None = None,
    max_new_tokens: int | None = None,
    plain: bool = False,
) -> Parity:
    """Write `parity.json` and `parity.md`; a link that broke is a verdict, not a failure.

    Args:
        engines: by name; our own is always one of them, before the others.
        count: held-out prompts; as many as the proof takes when empty.
        max_new_tokens: cap on an answer; the proof's when empty.
        plain: ask every engine without the draft too.

    Raises:
        BadInput: there is no such engine, it is not installed, or the draft is no draft.
    """
    proof = ctx.config.recipe.prove
    most = max_new_tokens or proof.max_new_tokens
    prompts = heldout_prompts(ctx.inputs["regenerate"] / "responses.jsonl", count or proof.prompts)
    draft, depth = ctx.inputs["export"] / "draft", ctx.config.recipe.draft_depth
    found = judge(ctx, draft, prompts, engines, depth, most, plain)
    ctx.summary |= summary(found)
    return found


def judge(
    ctx: Context,
    draft: Path,
    prompts: Sequence[HeldOut],
    engines: Sequence[str],
    depth: int,
    most: int,
    plain: bool = False,
) -> Parity:
    """The same of a draft in any directory."""
    longest = max(len(prompt.ids) for prompt in prompts)
    settings = Settings(draft_tokens=depth, context=longest + most + depth + ROOM)
    found = check(
        target_dir(ctx),
        draft,
        prompts,
        [engine(name) for name in dict.fromkeys(("native", *engines))],
        settings,
        most,
        ctx.out / "work",
        ctx.progress.info,
        plain,
    )
    write_json(ctx.out / f"{NAME}.json", found.record())
    (ctx.out / f"{NAME}.md").write_text(page(found))
    if not found.holds:
        ctx.progress.warning(found.said)
    return found


def summary(found: Parity) -> dict[str, Any]:
    """What a stage says of it."""
    return {
        "holds": found.holds,
        "said": found.said,
        "tau": found.tau,
        "acceptance_by_position": found.by_position,
        "prompts": found.prompts,
        "depth": found.depth,
        "dtype": found.dtype,
        "engines": {one.engine: _facts(one) for one in found.engines},
    }


def _facts(one: EngineParity) -> dict[str, Any]:
    """What the registry keeps of an engine."""
    return {
        "version": one.version,
        "loads": one.broken != "loading",
        "broken": one.broken,
        "said": one.said,
        "tau": one.tau,
        "rounds": one.rounds,
        "acceptance_by_position": [place.found for place in one.positions],
        "texts_identical": one.text.equal if one.text is not None else 0,
    }
