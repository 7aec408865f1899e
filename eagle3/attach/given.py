"""A probe of one draft that somebody names, of a run directory or of a target's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3.attach.fingerprint import Fingerprint, fingerprint
from eagle3.attach.probe import probe_drafts
from eagle3.attach.stage import prompts_of, summary_of
from eagle3.bench.prompts import HeldOut
from eagle3.config.probe import ProbeConfig
from eagle3.data.local import target_dir, target_facts
from eagle3.diagnose.asking import as_served, rows
from eagle3.process import stop_on_signals
from eagle3.progress import Progress
from eagle3.run import Context, current, read_config
from eagle3.target import load_tokenizer


def probe_given(where: Path, config: ProbeConfig, *, is_run: bool) -> dict[str, Any]:
    """The summary that the stage would have.

    Raises:
        BadInput: it is no target, or the run has not prepared its prompts.
    """
    if not is_run:
        here = fingerprint(where)
        ids = as_served(load_tokenizer(where), rows("demo", config.prompts))
        prompts = [HeldOut(str(n), one) for n, one in enumerate(ids)]
        found = probe_drafts(where, here, prompts, config)
        return summary_of(here, {"capture_layers": None}, config, found)
    inputs = {name: current(where, name) for name in ("resolve", "prepare")}
    with stop_on_signals() as stop:
        progress = Progress("probe", where / "logs" / "probe.jsonl")
        ctx = Context(where, "probe", read_config(where), where, inputs, progress, stop)
        folder, facts = target_dir(ctx), target_facts(ctx)
        here = Fingerprint.of(folder, facts)
        seed = ctx.config.recipe.seed
        found = probe_drafts(folder, here, prompts_of(ctx), config, seed, ctx.check_stop)
        return summary_of(here, facts, config, found)
