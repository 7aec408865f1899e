"""What decoding costs here: the thread count to decode with, and the parts of a round.

A round of a shape costs a target forward of its rows, its draft work, and the bookkeeping that a
round of plain decoding has too.

Shapes: P tokens of a prompt, 3H the captured features.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from eagle3.decode.drafter import Seen
from eagle3.decode.engine import Engine
from eagle3.decode.linear import Table, speed_up
from eagle3.decode.request import Request
from eagle3.decode.sampling import Sampling
from eagle3.decode.tree import Shape
from eagle3.draft import Draft
from eagle3.drafters.eagle3 import Eagle3
from eagle3.drafters.plain import Plain
from eagle3.target import Target

_TRIAL_TOKENS = 16
_TRIALS = 3
_REPEATS = 9


def choose_threads(
    target: Target, drafts: Sequence[nn.Module], prompt_ids: list[int], wanted: int | None
) -> tuple[Table, dict[int, float]]:
    """Set the thread count at which *plain* decoding is fastest, or the one that is wanted.

    Args:
        drafts: networks whose linears take their fastest form too.

    Returns:
        The table of linear forms measured at that count, and plain tokens/s by thread count.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    candidates = [wanted] if wanted else sorted({1, cores or 1})
    speeds = {}
    for threads in candidates:
        torch.set_num_threads(threads)
        speed_up(target.model, *drafts, measure=True)
        speeds[threads] = _plain_tokens_per_s(target, prompt_ids)
    torch.set_num_threads(max(speeds, key=lambda t: speeds[t]))
    return speed_up(target.model, *drafts, measure=True), speeds


def _plain_tokens_per_s(target: Target, prompt_ids: list[int]) -> float:
    request = Request(prompt_ids, _TRIAL_TOKENS + 1)
    runs = Engine(target, Plain()).generate([request] * _TRIALS)
    return max(r.decoded / r.decode_s for r in runs)


@torch.inference_mode()
def target_seconds(target: Target, prompt_ids: list[int], rows: list[int]) -> dict[int, float]:
    """Median time of a target forward and its head, by rows, after this prompt."""
    cache = target.new_cache(len(prompt_ids) + max(rows))
    target.forward(torch.tensor([prompt_ids], device=target.device), cache)
    cache.advance(len(prompt_ids))

    def forward(count: int) -> Callable[[], object]:
        ids = torch.tensor([[prompt_ids[-1]] * count], device=target.device)

        def run() -> object:
            hidden, _ = target.forward(ids, cache, capture=True)
            return target.logits(hidden[0]).argmax(-1).tolist()

        return run

    return _medians({count: forward(count) for count in rows})


@dataclass(frozen=True)
class Costs:
    """Seconds on this device, each measured."""

    target_s: Mapping[int, float]
    """A target forward, by rows; a number in between costs what the next one does."""
    draft_s: Mapping[int, tuple[float, float]]
    """Draft work of a round by `top_k`: what it costs at depth 0, and each depth more."""
    other_s: float = 0.0
    """A round's bookkeeping: what a round of plain decoding takes beside its forward."""

    def round_s(self, shape: Shape) -> float:
        return self.verifying_s(shape) + self.drafting_s(shape) + self.other_s

    def verifying_s(self, shape: Shape) -> float:
        return self.target_s[min(n for n in self.target_s if n >= shape.kept + 1)]

    def drafting_s(self, shape: Shape) -> float:
        fixed, step = self.draft_s[shape.top_k]
        return fixed + shape.depth * step

    @property
    def plain_s(self) -> float:
        return self.target_s[1] + self.other_s


def measure_costs(
    target: Target, draft: Draft, prompt_ids: list[int], shapes: Sequence[Shape]
) -> Costs:
    """The costs of these shapes, after this prompt."""
    rows = {1, *(shape.kept + 1 for shape in shapes)}
    depths = {
        top_k: max(shape.depth for shape in shapes if shape.top_k == top_k)
        for top_k in {shape.top_k for shape in shapes}
    }
    return Costs(
        target_seconds(target, prompt_ids, sorted(rows)),
        {
            top_k: draft_seconds(target, draft, prompt_ids, Shape(depth, top_k))
            for top_k, depth in depths.items()
        },
        _other_seconds(target, prompt_ids),
    )


@torch.inference_mode()
def draft_seconds(
    target: Target, draft: Draft, prompt_ids: list[int], shape: Shape
) -> tuple[float, float]:
    """Median times of a round's draft work: at depth 0, and each depth more.

    A round guesses, and then reads the true features of what stands, here of two tokens.
    """
    session = Eagle3(draft, shape).session(1, len(prompt_ids) + 4 * _REPEATS)
    ids = torch.tensor([prompt_ids], device=target.device)
    _, features = target.forward(ids, target.new_cache(len(prompt_ids)), capture=True)
    assert features is not None
    features_P3H = features[0]
    session.open(0, prompt_ids, Sampling(), torch.Generator())
    session.observe({0: Seen(prompt_ids, prompt_ids, features_P3H, None)})
    two = Seen(prompt_ids[-2:], prompt_ids[-2:], features_P3H[-2:], None)
    found = _medians(
        {
            0: lambda: session.observe({0: two}),
            1: lambda: session.propose({0: 1}),
            shape.depth: lambda: session.propose({0: shape.depth}),
        }
    )
    step = found[1] if shape.depth == 1 else (found[shape.depth] - found[1]) / (shape.depth - 1)
    return found[0] + found[1] - step, step


def _other_seconds(target: Target, prompt_ids: list[int]) -> float:
    request = Request(prompt_ids, _TRIAL_TOKENS + 1)
    runs = Engine(target, Plain()).generate([request] * _TRIALS)
    return min((run.decode_s - run.timings.target) / run.rounds for run in runs)


def _medians(tasks: dict[int, Callable[[], object]]) -> dict[int, float]:
    """Rounds over all tasks, so that a slow moment of the machine hits each of them."""
    seconds: dict[int, list[float]] = {key: [] for key in tasks}
    for repeat in range(_REPEATS + 1):
        for key, task in tasks.items():
            started = time.perf_counter()
            task()
            if repeat:  # the first one warms up
                seconds[key].append(time.perf_counter() - started)
    return {key: statistics.median(values) for key, values in seconds.items()}
