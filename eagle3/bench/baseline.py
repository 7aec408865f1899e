"""Plain decoding by three loops; the fastest here is what speedups are divided by.

engine        the engine with empty trees: what drafting methods run on
bare          one row a forward over the engine's cache, and nothing else
transformers  stock `generate`: a model loaded afresh, its own attention and cache

All use the linears that are fastest here, stop alike and are counted alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from transformers import StoppingCriteria

from eagle3 import stock
from eagle3.bench.metrics import Counts
from eagle3.decode.engine import Engine
from eagle3.decode.forward import read_prompt
from eagle3.decode.linear import speed_up
from eagle3.decode.request import Generation, Request
from eagle3.decode.sequence import Sequence as Text
from eagle3.drafters.plain import Plain
from eagle3.load import load_model
from eagle3.target import Target


class Loop(Protocol):
    """Answers one request after the other."""

    def answer(self, request: Request) -> Generation: ...


class EngineLoop:
    """The engine, one request at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def answer(self, request: Request) -> Generation:
        return self.engine.generate([request])[0]


class BareLoop:
    """A forward of one row for each token."""

    def __init__(self, target: Target) -> None:
        self.target = target

    @torch.inference_mode()
    def answer(self, request: Request) -> Generation:
        target, began = self.target, time.perf_counter()
        text = Text(0, 0, request, target.context)
        cache = target.new_cache(len(text.prompt_ids) + text.most)
        said = read_prompt(target, cache, 0, text.prompt_ids, capture=False)
        logits_1V, largest = said.logits[0], said.largest[0]
        while True:
            _, token = text.choose(logits_1V, largest)
            text.take([token])
            text.out.stamps.append(time.perf_counter() - began)
            if text.finished:
                return _timed(text.finish())
            ids_11 = torch.tensor([[token]], device=target.device)
            hidden_11H, _ = target.forward(ids_11, cache)
            cache.advance(1)
            logits_1V = target.logits(hidden_11H[0])
            largest = logits_1V.argmax(-1).tolist()


class StockLoop:
    """`generate` of transformers."""

    def __init__(self, folder: Path, target: Target) -> None:
        self.model, _ = load_model(folder, target.dtype, str(target.device))
        self.context = target.context
        speed_up(self.model, measure=True)

    def answer(self, request: Request) -> Generation:
        cap = min(request.max_new_tokens, self.context - len(request.prompt_ids))
        torch.manual_seed(request.seed)
        clock = _Clock()
        [tokens] = stock.generate(
            self.model, request.prompt_ids, cap, request.stop_ids, request.sampling, watch=[clock]
        )
        ended = bool(tokens) and tokens[-1] in request.stop_ids
        generation = Generation(
            tokens, finish="eos" if ended else "length", stamps=clock.stamps[: len(tokens)]
        )
        return _timed(generation)


class _Clock(StoppingCriteria):  # type: ignore[misc]
    """Notes when each token is there."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.stamps: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if input_ids.device.type == "cuda":
            torch.cuda.synchronize()
        self.stamps.append(time.perf_counter() - self.began)
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def _timed(generation: Generation) -> Generation:
    """Times and rounds of a loop that emits one token a forward, from its stamps."""
    generation.rounds = generation.decoded
    generation.prefill_s = generation.stamps[0]
    generation.decode_s = generation.timings.target = generation.stamps[-1] - generation.stamps[0]
    return generation


def counts(generation: Generation) -> Counts:
    """What one answer adds to a method's figures."""
    return Counts(
        generation.decoded,
        generation.rounds,
        generation.decode_s,
        generation.timings.target,
        generation.timings.draft,
        generation.reached,
        generation.accepted,
    )


_LOOPS: dict[str, Callable[[Target, Path], Loop]] = {
    "engine": lambda target, folder: EngineLoop(Engine(target, Plain())),
    "bare": lambda target, folder: BareLoop(target),
    "transformers": lambda target, folder: StockLoop(folder, target),
}


@dataclass(frozen=True)
class Baseline:
    """The fastest loop, and the tokens/s of every one."""

    name: str
    loop: Loop
    tokens_per_s: dict[str, float]

    @classmethod
    def choose(cls, target: Target, folder: Path, requests: Sequence[Request]) -> Self:
        """Decode the same requests by every loop; they take turns, after an answer to warm up.

        Args:
            folder: the target's files; the stock loop loads a second copy of it.
        """
        loops = {name: make(target, folder) for name, make in _LOOPS.items()}
        totals = {name: Counts() for name in loops}
        names = list(loops)
        for n, request in enumerate([requests[0], *requests]):
            for name in names[n % len(names) :] + names[: n % len(names)]:
                counted = counts(loops[name].answer(request))
                totals[name] += counted if n else Counts()
        speeds = {name: total.tokens_per_s for name, total in totals.items()}
        fastest = max(speeds, key=lambda name: speeds[name])
        return cls(fastest, loops[fastest], speeds)

    @classmethod
    def known(cls, target: Target, folder: Path, tokens_per_s: dict[str, float]) -> Self:
        """That of an earlier choice, by the speeds that chose."""
        fastest = max(tokens_per_s, key=lambda name: tokens_per_s[name])
        return cls(fastest, _LOOPS[fastest](target, folder), tokens_per_s)

    def said(self) -> str:
        each = ", ".join(f"{name} {speed:.1f}" for name, speed in self.tokens_per_s.items())
        return f"plain decoding, tokens/s: {each}; the baseline is {self.name}"
