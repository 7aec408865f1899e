"""The `benchmark` stage: plain decoding, by its fastest loop, against EAGLE-3 decoding, in one run.

Both decode the same held-out prompts with the same caps and stops, in an order drawn by seed, after
a warm-up. Figures are defined in `metrics`; `docs/decoding.md` describes `benchmark.json`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from eagle3.bench import metrics
from eagle3.bench.baseline import Baseline, EngineLoop, Loop, counts
from eagle3.bench.choose import Choice, candidates, choose
from eagle3.bench.cost import choose_threads, measure_costs
from eagle3.bench.metrics import Counts, Pair
from eagle3.bench.prompts import HeldOut, heldout_answers, heldout_prompts
from eagle3.bench.simulate import read_answers
from eagle3.config import BenchmarkConfig
from eagle3.data.checks import check_unchanged
from eagle3.data.local import open_target, open_tokenizer, target_dir, target_facts
from eagle3.decode.engine import Engine
from eagle3.decode.request import Generation, Request
from eagle3.decode.sampling import Sampling
from eagle3.decode.tree import Shape
from eagle3.draft import Draft
from eagle3.drafters.eagle3 import Eagle3
from eagle3.export.given import exported
from eagle3.provenance import hardware, versions
from eagle3.run import Context, write_json
from eagle3.target import Target

_WARM_UP_TOKENS = 12
_SAMPLES = 3
_TRIALS = 2
"""Prompts that choose the plain loop."""
_ANSWERS = 8
"""Held-out answers that choose a tree."""


@dataclass(frozen=True)
class Row:
    """One prompt decoded once by both methods."""

    id: str
    repeat: int
    prompt_tokens: int
    first: str
    """The method that ran first."""
    plain: Counts
    draft: Counts
    equal: bool
    """Both gave the same tokens; at temperature 0 the proof judges a difference."""
    tokens: dict[str, list[int]]


def benchmark(ctx: Context) -> None:
    """Write `benchmark.json`; a slow draft or a measurement error is a result, not a failure."""
    config, seed = ctx.config.recipe.benchmark, ctx.config.recipe.seed
    check_unchanged(target_dir(ctx), target_facts(ctx))
    target = open_target(ctx, exact=True)
    draft = exported(ctx, target)
    prompts = heldout_prompts(ctx.inputs["regenerate"] / "responses.jsonl", config.prompts)
    table, speeds = choose_threads(target, [draft], prompts[0].ids, config.threads)
    measured = ", ".join(f"{speed:.1f} with {n} thread(s)" for n, speed in speeds.items())
    ctx.progress.info(f"plain decoding, tokens/s: {measured}")
    choice = _choose(ctx, target, draft, prompts) if config.chooses else None
    shape = Shape(*config.shape) if choice is None else choice.best.shape
    baseline = Baseline.choose(target, target_dir(ctx), _requests(ctx, target, prompts)[:_TRIALS])
    ctx.progress.info(baseline.said())
    methods = {"plain": baseline.loop, "draft": EngineLoop(Engine(target, Eagle3(draft, shape)))}
    rows = _rows(ctx, target, methods, prompts)
    result = _figures(rows, seed) | {
        "baseline": {"loop": baseline.name, "tokens_per_s": baseline.tokens_per_s},
        "settings": config.model_dump(mode="json"),
        "seed": seed,
        "threads": {
            "used": table.threads,
            "plain_tokens_per_s": {str(t): s for t, s in speeds.items()},
        },
        "linears": table.as_json(),
        "hardware": hardware(),
        "versions": versions(),
        "samples": _samples(rows, open_tokenizer(ctx)),
    }
    result["cost_model"] = _cost_model(target, draft, shape, prompts[0].ids, result)
    result["choice"] = None if choice is None else choice.record()
    result["shape"] = {"depth": shape.depth, "top_k": shape.top_k, "total_tokens": shape.total}
    write_json(ctx.out / "benchmark.json", result)
    _summarise(ctx, result, config, choice)


def _choose(ctx: Context, target: Target, draft: Draft, prompts: list[HeldOut]) -> Choice:
    """The fastest tree, from other held-out answers than those that are measured, where there are
    some."""
    recipe = ctx.config.recipe
    wanted = candidates(recipe.benchmark, recipe.draft_depth)
    ctx.progress.info(f"choosing the tree among {len(wanted)}")
    responses = heldout_answers(
        ctx.inputs["regenerate"] / "responses.jsonl", len(prompts), _ANSWERS
    )
    costs = measure_costs(target, draft, prompts[0].ids, wanted)
    choice = choose(draft, read_answers(target, responses), costs, wanted)
    ctx.progress.info(choice.said())
    return choice


def _requests(
    ctx: Context, target: Target, prompts: list[HeldOut], repeat: int = 0
) -> list[Request]:
    config, seed = ctx.config.recipe.benchmark, ctx.config.recipe.seed
    sampling, eos_ids = Sampling(config.temperature), target.eos_ids()
    return [
        Request(prompt.ids, config.max_new_tokens, sampling, eos_ids, seed=seed + repeat)
        for prompt in prompts
    ]


def _rows(
    ctx: Context, target: Target, methods: dict[str, Loop], prompts: list[HeldOut]
) -> list[Row]:
    """Every prompt, `repeats` times, by both methods, in an order drawn by seed; the two take turns
    at going first."""
    config, seed = ctx.config.recipe.benchmark, ctx.config.recipe.seed
    for loop in methods.values():
        loop.answer(replace(_requests(ctx, target, prompts[:1])[0], max_new_tokens=_WARM_UP_TOKENS))
    todo = [(prompt, repeat) for repeat in range(config.repeats) for prompt in prompts]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(todo), generator=generator).tolist()
    coin = int(torch.randint(2, (), generator=generator))
    rows = []
    for done, index in enumerate(order, start=1):
        ctx.check_stop("a benchmark starts anew")
        prompt, repeat = todo[index]
        [request] = _requests(ctx, target, [prompt], repeat)
        names = ["draft", "plain"] if (done + coin) % 2 else ["plain", "draft"]
        out = {name: methods[name].answer(request) for name in names}
        rows.append(_row(prompt, repeat, names[0], out))
        ctx.progress.progress(done, len(todo), "prompt")
    return rows


def _row(prompt: HeldOut, repeat: int, first: str, out: dict[str, Generation]) -> Row:
    counted = {name: counts(g) for name, g in out.items()}
    tokens = {name: g.tokens for name, g in out.items()}
    equal = tokens["plain"] == tokens["draft"]
    return Row(prompt.id, repeat, len(prompt.ids), first, **counted, equal=equal, tokens=tokens)


def _figures(rows: list[Row], seed: int) -> dict[str, Any]:
    """All figures over the rows; none is left out, slow or not."""
    by_prompt: dict[str, Pair] = {}
    for row in rows:
        before = by_prompt.get(row.id, Pair(Counts(), Counts()))
        by_prompt[row.id] = Pair(before.plain + row.plain, before.draft + row.draft)
    pairs = list(by_prompt.values())
    both, tau = metrics.total(pairs), metrics.tau(pairs)
    speedup_ci = metrics.interval(pairs, metrics.speedup, seed)
    verdict, why = metrics.verdict(speedup_ci, tau)
    return {
        "plain": {"tokens_per_s": both.plain.tokens_per_s, **asdict(both.plain)},
        "draft": {"tokens_per_s": both.draft.tokens_per_s, **asdict(both.draft)},
        "speedup": metrics.speedup(pairs),
        "speedup_ci": list(speedup_ci),
        "tau": tau,
        "tau_ci": list(metrics.interval(pairs, metrics.tau, seed)),
        "acceptance_by_position": both.draft.acceptance_by_position,
        "prompts": len(pairs),
        "equal": sum(row.equal for row in rows),
        "verdict": verdict,
        "why": why,
        "rows": [
            {
                **{k: v for k, v in asdict(row).items() if k != "tokens"},
                "speedup": metrics.speedup([Pair(row.plain, row.draft)]),
            }
            for row in rows
        ],
    }


def _cost_model(
    target: Target, draft: Draft, shape: Shape, prompt_ids: list[int], result: dict[str, Any]
) -> dict[str, Any]:
    """A round costs c(verified rows), its draft steps and bookkeeping; plain decoding pays c(1) and
    bookkeeping for a token."""
    chains = [Shape(depth) for depth in range(1, shape.depth + 1)]
    costs = measure_costs(target, draft, prompt_ids, [*chains, shape])
    verify_s = costs.verifying_s(shape) + costs.other_s
    predicted = metrics.predicted_speedup(
        result["tau"], costs.plain_s, verify_s, costs.drafting_s(shape)
    )
    return {
        "target_ms_by_rows": {str(n): 1e3 * s for n, s in costs.target_s.items()},
        "draft_step_ms": 1e3 * costs.drafting_s(shape) / shape.depth,
        "draft_steps": shape.depth,
        "other_ms": 1e3 * costs.other_s,
        "verified_rows": shape.kept + 1,
        "predicted_speedup": predicted,
        "agrees": metrics.agrees(predicted, result["speedup"], result["speedup_ci"]),
        "formula": "tau * (c(1) + other) / (c(verified_rows) + draft_steps * draft_step + other)",
    }


def _samples(rows: list[Row], tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Any]]:
    return [
        {"id": row.id, "equal": row.equal}
        | {name: tokenizer.decode(ids) for name, ids in row.tokens.items()}
        for row in rows[:_SAMPLES]
    ]


def _summarise(
    ctx: Context, result: dict[str, Any], config: BenchmarkConfig, choice: Choice | None
) -> None:
    ctx.summary |= {
        "plain_tokens_per_s": result["plain"]["tokens_per_s"],
        "draft_tokens_per_s": result["draft"]["tokens_per_s"],
        **result["shape"],
        "predicted_speedup": result["cost_model"]["predicted_speedup"],
        "threads": result["threads"]["used"],
    }
    for key in ("speedup", "speedup_ci", "tau", "tau_ci", "acceptance_by_position", "prompts"):
        ctx.summary[key] = result[key]
    ctx.summary["verdict"] = result["verdict"]
    say = ctx.progress.info if result["verdict"] == "faster" else ctx.progress.warning
    cost = result["cost_model"]
    rows, ms = str(cost["verified_rows"]), cost["target_ms_by_rows"]
    say(
        f"{result['verdict']}: {result['why']}; the cost model predicts "
        f"{cost['predicted_speedup']:.2f} at tau {result['tau']:.2f}: a target forward costs "
        f"{ms['1']:.1f} ms for 1 row and {ms[rows]:.1f} ms for {rows}, a draft step "
        f"{cost['draft_step_ms']:.1f} ms"
    )
    if choice is not None:
        best = choice.best
        ctx.progress.info(
            f"chosen for {best.speedup:.2f}x at tau {best.tau:.2f}; measured: "
            f"{result['speedup']:.2f}x at tau {result['tau']:.2f}"
        )
    if config.temperature == 0 and result["equal"] < len(result["rows"]):
        different = len(result["rows"]) - result["equal"]
        ctx.progress.warning(f"{different} outputs differ from plain decoding; the proof judges")
