"""What a bundle says about serving: which engines were tried, what came of it, and how to start."""

from __future__ import annotations

import shlex
from typing import Any

from eagle3.config import TargetRef
from eagle3.plan import FORMATS, serving
from jobs.spec import JobSpec

STARTED = ("llamacpp", "vllm", "sglang")
"""Engines that `updraft serve` starts, in the order in which one is recommended."""


def serving_facts(
    spec: JobSpec, job_id: str, summaries: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The content of `serving.json`.

    Ready flags of each engine, by the benchmark's chain; `engines`: of each that was tried, its
    version, whether it loads the draft, and acceptance by position; `formats`: who loads which, and
    where those are that the bundle has.
    """
    bench = spec.resolved_recipe().benchmark.chosen(summaries["benchmark"])
    resolved = str(summaries["resolve"]["resolved"])
    ready = serving(TargetRef.parse(spec.target), resolved, bench)
    parity = summaries.get("parity", {})
    formats: dict[str, Any] = {name: {"engines": list(who)} for name, who in FORMATS.items()}
    formats["official"]["path"] = "draft"
    for name in FORMATS.keys() - {"official"}:
        formats[name]["made_by"] = f"eagle3 export draft --target TARGET --format {name} --out DIR"
    compared = ("holds", "said", "tau", "acceptance_by_position", "prompts", "depth", "dtype")
    engines: dict[str, dict[str, Any]] = parity.get("engines", {})
    return {
        **ready,
        "job_id": job_id,
        "weights_sha256": summaries["resolve"]["weights_sha256"],
        "formats": formats,
        "parity": {name: parity.get(name) for name in compared},
        "engines": engines,
        "left_out": parity.get("left_out", {}),
        "serve": shlex.join(["updraft", "serve", job_id, "--engine", _best(engines)]),
    }


def readme(name: str, serving: dict[str, Any], summaries: dict[str, dict[str, Any]]) -> str:
    """The bundle's `README.md`: what it is, the one command that serves it, what was tried."""
    bench, prompts = summaries["benchmark"], serving["parity"]["prompts"]
    rows = [_row(engine, one, prompts) for engine, one in serving["engines"].items()]
    left_out = [f"- {engine} was not tried: {why}" for engine, why in serving["left_out"].items()]
    lines = [
        f"# {name}\n",
        f"An EAGLE-3 draft for `{serving['target']}`. On the machine that measured it, "
        f"{bench['speedup']:.2f}x plain decoding at an acceptance length of {bench['tau']:.2f}, "
        f"{serving['num_speculative_tokens']} draft tokens a round (`report.md`).\n",
        f"    {serving['serve']}\n",
        "starts target and draft on your machine and prints a curl line. Without the service, from "
        "this directory: `eagle3 serve TARGET . --engine ENGINE`. Flags for servers that you start "
        "yourself are in `serving.json`.\n",
        "| engine | version | loads | acceptance by position | text is the target's | |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        *left_out,
    ]
    return "\n".join(lines).rstrip() + "\n"


def _row(engine: str, one: dict[str, Any], prompts: int) -> str:
    rates = ", ".join(f"{rate:.0%}" for rate in one["acceptance_by_position"]) or "–"
    verdict = f"**broken: {one['broken']}**" if one["broken"] else "agrees"
    loads = "yes" if one["loads"] else "no"
    text = f"{one['texts_identical']} of {prompts}"
    return f"| {engine} | {one['version']} | {loads} | {rates} | {text} | {verdict} |"


def _best(engines: dict[str, dict[str, Any]]) -> str:
    """An engine that agrees with training; vLLM where none of these was tried."""
    agree = [name for name in STARTED if name in engines and not engines[name]["broken"]]
    return agree[0] if agree else "vllm"
