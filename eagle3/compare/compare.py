"""A comparison from a run's features: train, choose the baseline, ask, and say what came of it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from eagle3.bench.baseline import Baseline, EngineLoop, Loop
from eagle3.bench.tasks import Task
from eagle3.compare.ask import LEAST_TOKENS, PLAIN, Asked, Asking, ask_all, pick
from eagle3.compare.methods import Made, Materials, make
from eagle3.compare.result import (
    BudgetSaid,
    Comparison,
    PlainLoop,
    TaskInfo,
    method_result,
    plain_speeds,
)
from eagle3.config import BenchmarkConfig
from eagle3.data.checks import check_unchanged
from eagle3.data.local import open_target, open_tokenizer, target_dir, target_facts
from eagle3.data.records import read_json
from eagle3.data.source import open_source
from eagle3.decode.engine import Engine
from eagle3.decode.linear import speed_up
from eagle3.decode.request import Request
from eagle3.decode.tree import Shape
from eagle3.drafters.trainer import Budget
from eagle3.errors import BadInput
from eagle3.provenance import hardware, versions
from eagle3.run import Context, current, read_manifest, sha256_json, write_json
from eagle3.target import Target
from eagle3.train.samples import choose

BASELINE_PROMPTS = 3
BASELINE_TOKENS = 32


@dataclass(frozen=True)
class Settings:
    """What a comparison is asked to do."""

    methods: Sequence[str]
    prompts: int
    """Of each task."""
    max_new_tokens: int
    temperature: float
    budget: Budget
    """Of each training."""


def compare(ctx: Context, tasks: Sequence[Task], settings: Settings) -> Comparison:
    """Compare methods on tasks.

    Args:
        ctx: of a run with features; what is kept lies in `ctx.out`.

    Raises:
        BadInput: nothing to train on, no question that fits the target's context, or the files of
            the target have changed since.
        Stopped: TERM or INT came; what was trained and asked is kept.
    """
    recipe = ctx.config.recipe
    if recipe.benchmark.threads is not None:
        torch.set_num_threads(recipe.benchmark.threads)
    check_unchanged(target_dir(ctx), target_facts(ctx))
    target = open_target(ctx, exact=True)
    made = _make_all(ctx, target, settings)
    speed_up(target.model, measure=True)
    picked = [
        replace(task, questions=pick(task.questions, settings.prompts, recipe.seed))
        for task in tasks
    ]
    engines: dict[str, Loop] = {
        name: EngineLoop(Engine(target, method.drafter)) for name, method in made.items()
    }
    asking = Asking(
        engines,
        open_tokenizer(ctx),
        target.context,
        target.eos_ids(),
        settings.max_new_tokens,
        settings.temperature,
        recipe.seed,
    )
    key = _key(ctx, picked, settings, made)
    baseline = _fastest_plain(ctx, target, asking, picked, ctx.out / f"plain-{key}.json")
    asking = replace(asking, loops={PLAIN: baseline.loop, **engines})

    def said(done: int, total: int, what: str) -> None:
        ctx.check_stop("questions that were asked are kept")
        ctx.progress.progress(done, total, "question", what)

    asked = ask_all(asking, picked, ctx.out / f"asked-{key}.jsonl", said)
    return _comparison(ctx, target, tasks, settings, made, baseline, asked)


def _make_all(ctx: Context, target: Target, settings: Settings) -> dict[str, Made]:
    recipe = ctx.config.recipe
    with closing(open_source(ctx, target)) as source:
        materials = Materials(
            ctx,
            target,
            source,
            choose(source, recipe.train, recipe.seed, ctx.progress),
            common_tree(ctx),
            ctx.out,
        )
        return {name: make(name, materials, settings.budget) for name in settings.methods}


def common_tree(ctx: Context) -> Shape:
    """The tree that methods are compared at: the recipe's. What it leaves open (`auto`) is what the
    benchmark of this run chose, or else the default of a recipe that says nothing."""
    recipe = ctx.config.recipe
    config, source = recipe.benchmark, "the recipe's"
    if config.chooses and (chosen := _benchmarked(ctx)):
        config, source = config.chosen(chosen), "what the benchmark of this run chose"
    if config.chooses:
        default = BenchmarkConfig(depth=min(3, recipe.draft_depth))
        names = [n for n in ("depth", "top_k", "total_tokens") if getattr(config, n) == "auto"]
        config = config.model_copy(update={name: getattr(default, name) for name in names})
        source = f"by default, as no benchmark has chosen {' or '.join(names)}"
    shape = Shape(*config.shape)
    ctx.progress.info(
        f"methods are compared at depth {shape.depth}, {shape.top_k} children a node, "
        f"{shape.kept} nodes: {source}"
    )
    return shape


def _benchmarked(ctx: Context) -> dict[str, Any]:
    """The summary of this run's benchmark; empty where it has not run."""
    try:
        folder = current(ctx.run, "benchmark")
    except BadInput:
        return {}
    summary: dict[str, Any] = read_manifest(folder)["summary"]
    return summary


def _fastest_plain(
    ctx: Context, target: Target, asking: Asking, tasks: Sequence[Task], known: Path
) -> Baseline:
    """The plain loop that is fastest on the first questions.

    Args:
        known: keeps the speeds, so that a comparison which goes on has the baseline it began with.

    Raises:
        BadInput: none of the questions fits.
    """
    found: list[Request] = []
    for question in (question for task in tasks for question in task.questions):
        ids = asking.first_prompt(question)
        if len(ids) + LEAST_TOKENS <= target.context:
            cap = min(BASELINE_TOKENS, asking.max_new_tokens)
            found.append(asking.request(ids, asking.seed, cap))
        if len(found) == BASELINE_PROMPTS:
            break
    if not found:
        raise BadInput(
            f"no question leaves room for an answer in the target's context of {target.context}",
            "name tasks with shorter questions",
        )
    if known.is_file():
        baseline = Baseline.known(target, target_dir(ctx), read_json(known))
    else:
        baseline = Baseline.choose(target, target_dir(ctx), found)
        write_json(known, baseline.tokens_per_s)
    ctx.progress.info(baseline.said())
    return baseline


def _key(ctx: Context, tasks: Sequence[Task], settings: Settings, made: dict[str, Made]) -> str:
    """A hash of what decides the answers and their times, but for the machine's mood."""
    parts = {
        "target": target_facts(ctx)["weights_sha256"],
        "tasks": [(task.name, [vars(q) for q in task.questions]) for task in tasks],
        "caps": (settings.max_new_tokens, settings.temperature, ctx.config.recipe.seed),
        "methods": [(n, m.settings, m.training and m.training.sha256) for n, m in made.items()],
        "machine": (hardware(), versions(), torch.get_num_threads()),
    }
    return sha256_json(parts)[:16]


def _comparison(
    ctx: Context,
    target: Target,
    tasks: Sequence[Task],
    settings: Settings,
    made: dict[str, Made],
    baseline: Baseline,
    asked: list[Asked],
) -> Comparison:
    facts, seed = target_facts(ctx), ctx.config.recipe.seed
    names = [task.name for task in tasks]
    return Comparison(
        target=facts["resolved"],
        weights_sha256=facts["weights_sha256"],
        temperature=settings.temperature,
        max_new_tokens=settings.max_new_tokens,
        budget=BudgetSaid(seconds=settings.budget.seconds, tokens=settings.budget.tokens),
        seed=seed,
        tasks=[_task_info(task, asked) for task in tasks],
        baseline=PlainLoop(loop=baseline.name, tokens_per_s=baseline.tokens_per_s),
        plain=plain_speeds(asked, names),
        methods=[
            method_result(name, method.settings, method.training, asked, names, seed)
            for name, method in made.items()
        ],
        asked=asked,
        hardware=hardware(),
        versions=versions(),
        commit=commit(),
        threads=torch.get_num_threads(),
        device=str(target.device),
        dtype=str(target.dtype).removeprefix("torch."),
    )


def _task_info(task: Task, asked: Sequence[Asked]) -> TaskInfo:
    own = [a for a in asked if a.task == task.name]
    return TaskInfo(
        name=task.name,
        source=task.source,
        questions=len(task.questions),
        asked=sum(bool(a.rows) for a in own),
        left_out={a.question: a.left_out for a in own if a.left_out},
    )


def commit() -> str | None:
    """The commit of this code, with a + where files were changed; None outside a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "eagle3")
    return (git("rev-parse", "HEAD") + ("+" if changed else "")) or None
