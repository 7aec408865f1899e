"""Our own engine (`eagle3/decode`), in this process: what the other engines are compared with."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch

from eagle3.decode.drafter import Drafter
from eagle3.decode.engine import Engine as Decoder
from eagle3.decode.linear import speed_up
from eagle3.decode.request import Generation, Request
from eagle3.decode.sampling import Sampling as Choice
from eagle3.decode.tree import Shape
from eagle3.draft import Draft
from eagle3.drafters.eagle3 import Eagle3
from eagle3.drafters.plain import Plain
from eagle3.engines.engine import Answer, Drafted, Sampling, Settings
from eagle3.engines.pair import read_draft
from eagle3.errors import BadInput, EngineFailed
from eagle3.target import Target


class Native:
    """Starts `Loaded`."""

    name = "native"

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return importlib.metadata.version("updraft")

    def start(self, target: Path, draft: Path | None, settings: Settings, work: Path) -> Loaded:
        if draft is None or settings.draft_tokens == 0:
            # Nothing reads the features; of a shallow target there are no usual layers.
            return Loaded(_target(target, settings, (0, 0, 0)), Plain(), settings)
        stored = read_draft(draft, target)
        loaded = _target(target, settings, stored.config.capture_layers)
        network = Draft(stored.config, loaded.embed.weight.detach())
        network.load_state_dict(stored.tensors, strict=True)
        network.to(device=loaded.device, dtype=loaded.dtype).eval().requires_grad_(False)
        return Loaded(loaded, Eagle3(network, Shape(settings.draft_tokens)), settings)


class Loaded:
    """A target and a draft in this process; see `Running`."""

    url: str | None = None
    log: Path | None = None

    def __init__(self, target: Target, drafter: Drafter, settings: Settings) -> None:
        self._target, self._settings = target, settings
        self._decoder = Decoder(target, drafter, settings.slots)
        self._drafted = Drafted()
        self._threads_before = torch.get_num_threads()
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Answer]:
        """See `Running`; one that takes too long is noticed when a round ends."""
        done: dict[int, Answer] = {}
        started: dict[int, float] = {}
        requests = [self._request(prompt, sampling) for prompt in prompts]
        for emission in self._decoder.stream(requests):
            now = time.perf_counter()
            began = started.setdefault(emission.request, now)
            if now - began > sampling.timeout_seconds:
                raise EngineFailed(
                    f"native did not finish an answer within {sampling.timeout_seconds:g} s",
                    "ask for fewer tokens, or give it more time",
                )
            if emission.done is not None:
                self._drafted += _drafted(emission.done)
                stamps = emission.done.stamps
                done[emission.request] = Answer(tuple(emission.done.tokens), stamps[-1], stamps[0])
        return [done[number] for number in sorted(done)]

    def metrics(self) -> Drafted:
        return self._drafted

    def stop(self) -> None:
        torch.set_num_threads(self._threads_before)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _request(self, prompt: Sequence[int], sampling: Sampling) -> Request:
        room = self._settings.context - len(prompt)
        if room < 1:
            raise BadInput(
                f"a prompt has {len(prompt)} tokens; prompt and answer together may have "
                f"{self._settings.context}",
                "start the engine with a longer context",
            )
        choice = Choice(
            temperature=sampling.temperature,
            top_p=None if sampling.top_p == 1 else sampling.top_p,
            top_k=sampling.top_k or None,
        )
        ends = frozenset[int]() if sampling.ignore_eos else self._target.eos_ids()
        seed = int(torch.seed() % 2**31) if sampling.seed is None else sampling.seed
        return Request(prompt, min(sampling.max_tokens, room), choice, ends, seed=seed)


def _target(folder: Path, settings: Settings, layers: tuple[int, int, int]) -> Target:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        target = Target.load(folder, getattr(torch, settings.dtype), device, layers)
    except (OSError, ValueError) as e:
        raise BadInput(
            f"{folder} does not load: {e}", "name a directory as transformers saves it"
        ) from None
    speed_up(target.model)
    return target


def _drafted(answer: Generation) -> Drafted:
    rounds = answer.reached[0] if answer.reached else 0
    return Drafted(rounds, answer.drafted, sum(answer.accepted), tuple(answer.accepted))
