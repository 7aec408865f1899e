"""The stage `probe` of an attachment: the target's fingerprint, and its candidates' worth on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3.attach.fingerprint import FILE, Fingerprint
from eagle3.attach.probe import Probed, gain, probe_drafts
from eagle3.bench.prompts import HeldOut
from eagle3.config import RunConfig
from eagle3.config.probe import ProbeConfig
from eagle3.data.chat import prompt_ids
from eagle3.data.local import open_tokenizer, target_dir, target_facts
from eagle3.data.records import Prompt, read_records
from eagle3.errors import BadInput
from eagle3.parity.engines import choose
from eagle3.parity.stage import judge, summary
from eagle3.run import Context, Stage, write_json
from eagle3.train.warm import draft_content


def probe(ctx: Context) -> None:
    """Write `fingerprint.json` and `probe.json`. A draft that does not fit is a result.

    Raises:
        BadInput: the run has no probe, or no held-out prompts.
    """
    config = ctx.config.probe
    if config is None:
        raise BadInput("config.json names no drafts to probe", "eagle3 probe RUN DRAFT")
    folder, facts = target_dir(ctx), target_facts(ctx)
    here = Fingerprint.of(folder, facts)
    found = probe_drafts(
        folder,
        here,
        prompts_of(ctx) if config.drafts else [],
        config,
        ctx.config.recipe.seed,
        ctx.check_stop,
        ctx.progress.info,
    )
    ctx.summary |= summary_of(here, facts, config, found)
    if config.compare:
        ctx.summary["compared"] = gain(found[0], found[1], ctx.config.recipe.seed)
    if config.parity and found[0].fits:
        ctx.summary["parity"] = _parity(ctx, folder, config)
    write_json(ctx.out / FILE, here.model_dump())
    write_json(ctx.out / "probe.json", {"probed": [one.record() for one in found]})


def summary_of(
    here: Fingerprint, facts: dict[str, Any], config: ProbeConfig, found: list[Probed]
) -> dict[str, Any]:
    """What the decision is made from."""
    return {
        "fingerprint": here.model_dump(exclude={"samples"}),
        "capture_layers": facts["capture_layers"],
        "settings": config.model_dump(mode="json", exclude={"drafts"}),
        "probed": [one.record() for one in found],
    }


def _parity(ctx: Context, folder: Path, config: ProbeConfig) -> dict[str, Any]:
    """The first draft in the recipe's engines, on the same prompts."""
    chosen = choose(ctx.config.recipe.engines, folder, target_facts(ctx)["parameters"])
    draft, prompts = config.drafts[0], prompts_of(ctx)[: config.prompts]
    found = judge(
        ctx, Path(draft.path), prompts, chosen.engines, draft.depth, config.max_new_tokens
    )
    return {**summary(found), "left_out": chosen.left_out}


def prompts_of(ctx: Context) -> list[HeldOut]:
    """The held-out prompts in the order in which the benchmark takes them.

    Raises:
        BadInput: there are none.
    """
    prompts = read_records(ctx.inputs["prepare"] / "prompts.jsonl", Prompt)
    held = sorted((p for p in prompts if p.split == "heldout"), key=lambda p: p.id)
    if not held:
        raise BadInput("there are no held-out prompts", "mark some, or set prompts.heldout to 2+")
    tokenizer = open_tokenizer(ctx)
    return [HeldOut(p.id, p.ids or prompt_ids(tokenizer, p.turns()[0], p.tools)) for p in held]


def _key(config: RunConfig) -> dict[str, Any]:
    """How it is probed, and the drafts by content."""
    probe = config.probe or ProbeConfig()
    drafts = [
        {**d.model_dump(exclude={"path"}), "content": draft_content(Path(d.path))}
        for d in probe.drafts
    ]
    return {
        "seed": config.recipe.seed,
        "drafts": drafts,
        **probe.model_dump(mode="json", exclude={"drafts"}),
    }


PROBE = Stage("probe", ("resolve", "prepare"), _key, probe)
