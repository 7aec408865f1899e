"""What a forward costs here: the thread count to decode with, and the cost model of a round."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import torch

from eagle3.decode.attention import visible
from eagle3.decode.engine import Engine
from eagle3.decode.linear import Table, speed_up
from eagle3.decode.request import Request
from eagle3.decode.tree import Shape
from eagle3.draft import Draft, DraftCache
from eagle3.drafters.plain import Plain
from eagle3.target import Target

_TRIAL_TOKENS = 16
_TRIALS = 3


def choose_threads(
    target: Target, draft: Draft, prompt_ids: list[int], wanted: int | None
) -> tuple[Table, dict[int, float]]:
    """Set the thread count at which *plain* decoding is fastest, or the one that is wanted.

    Returns:
        The table of linear forms measured at that count, and plain tokens/s by thread count.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    candidates = [wanted] if wanted else sorted({1, cores or 1})
    speeds = {}
    for threads in candidates:
        torch.set_num_threads(threads)
        speed_up(target.model, draft, measure=True)
        speeds[threads] = _plain_tokens_per_s(target, prompt_ids)
    torch.set_num_threads(max(speeds, key=lambda t: speeds[t]))
    return speed_up(target.model, draft, measure=True), speeds


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


@torch.inference_mode()
def draft_seconds(draft: Draft, prompt_ids: list[int], shape: Shape) -> float:
    """Median time of one draft step: one round's frontier and its logits."""
    device = draft.embed_VH.device
    past, rows = len(prompt_ids), shape.top_k
    cache = DraftCache(past + rows)
    ids = torch.tensor(prompt_ids, device=device)
    feature = torch.zeros(past, draft.config.hidden_size, device=device, dtype=draft.embed_VH.dtype)
    draft(ids, feature, torch.arange(past, device=device), cache)
    cache.advance(past)
    mask = None
    if rows > 1:
        mask = visible(torch.eye(rows, dtype=torch.bool, device=device), [past])

    def run() -> object:
        position = torch.full((rows,), past, device=device)
        out = draft(ids[-1:].expand(rows), feature[:rows], position, cache, mask)
        return draft.logits(out).float().log_softmax(-1).topk(shape.top_k).indices.tolist()

    return _medians({0: run})[0]


def _medians(tasks: dict[int, Callable[[], object]], repeats: int = 9) -> dict[int, float]:
    """Rounds over all tasks, so that a slow moment of the machine hits each of them."""
    seconds: dict[int, list[float]] = {key: [] for key in tasks}
    for repeat in range(repeats + 1):
        for key, task in tasks.items():
            started = time.perf_counter()
            task()
            if repeat:  # the first one warms up
                seconds[key].append(time.perf_counter() - started)
    return {key: statistics.median(values) for key, values in seconds.items()}
