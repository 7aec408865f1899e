"""The gate: the trainer's chain, our engine and those of others, on the same held-out prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from eagle3.bench.prompts import HeldOut
from eagle3.data.local import default_device
from eagle3.engines.engine import Answer, Engine, Sampling, Settings
from eagle3.engines.pair import read_draft
from eagle3.errors import BadInput, EngineFailed
from eagle3.export import official
from eagle3.parity.agree import Position, Rounds, first_apart
from eagle3.parity.chain import Expected, Remembering, simulated
from eagle3.parity.text import Text, compare_text
from eagle3.target import Target

Link = Literal["loading", "target", "verification", "acceptance"]
"""What can break between the trainer and an answer: an engine does not load the draft; writes other
text than the target even without it; writes other text with it; accepts otherwise."""


@dataclass(frozen=True)
class EngineParity:
    """One engine against what training expects of it."""

    engine: str
    version: str
    broken: Link | None
    said: str
    """What is wrong and what to do, or that nothing is."""
    tau: float = 1.0
    rounds: int = 0
    positions: tuple[Position, ...] = ()
    text: Text | None = None
    alike: int | None = None
    """Prompts that it answers alike with and without the draft; None where it was not asked."""


@dataclass(frozen=True)
class Parity:
    """Whether a draft may be promoted, as far as engines go."""

    depth: int
    prompts: int
    tokens: int
    """New tokens of the target's own answers."""
    dtype: str
    tau: float
    """Of the trainer's simulated chain."""
    by_position: list[float]
    engines: list[EngineParity]

    @property
    def holds(self) -> bool:
        return all(engine.broken is None for engine in self.engines)

    @property
    def said(self) -> str:
        """The verdict in a sentence: the first link that broke."""
        broken = [engine for engine in self.engines if engine.broken is not None]
        if not broken:
            names = ", ".join(engine.engine for engine in self.engines)
            return f"Parity: {names} accept what training says, and write the target's own text."
        return f"No parity: {broken[0].engine}, {broken[0].broken}: {broken[0].said}"

    def record(self) -> dict[str, Any]:
        """As JSON."""
        found = asdict(self)
        for engine, row in zip(self.engines, found["engines"], strict=True):
            if engine.text is not None:
                for name in ("near_ties", "mismatches"):
                    row["text"][name] = [d.model_dump() for d in getattr(engine.text, name)]
            for position, place in zip(engine.positions, row["positions"], strict=True):
                place["agrees"] = position.agrees
        return {**found, "holds": self.holds, "said": self.said}


def check(
    target: Path,
    draft: Path,
    prompts: Sequence[HeldOut],
    engines: Sequence[Engine],
    settings: Settings,
    max_new_tokens: int,
    work: Path,
    tell: Callable[[str], None] = lambda _: None,
    plain: bool = False,
) -> Parity:
    """Serve the draft with each engine and compare.

    Args:
        target: a directory as transformers saves it.
        draft: the exported draft.
        settings: how engines are started; its `draft_tokens` is the depth of all chains.
        work: engines keep converted files and logs there.
        tell: hears what is going on.
        plain: ask each engine without the draft too; else only one whose text differs.

    Raises:
        BadInput: the draft is none of this target, or an engine is not installed.
    """
    for engine in engines:
        if (hint := engine.missing()) is not None:
            raise BadInput(f"{engine.name} is not installed here", hint)
    bench = _Bench.of(target, draft, prompts, settings, max_new_tokens, work)
    tell(f"the trainer's chain: acceptance length {bench.expected.whole.tau:.2f}")
    found = []
    for engine in engines:
        found.append(bench.judge(engine, plain))
        tell(f"{engine.name}: {found[-1].said}")
    return Parity(
        settings.draft_tokens,
        len(prompts),
        sum(min(len(answer), max_new_tokens) for answer in bench.answers),
        settings.dtype,
        bench.expected.whole.tau,
        bench.expected.whole.by_position,
        found,
    )


@dataclass(frozen=True)
class _Bench:
    """What every engine is held against."""

    target: Path
    draft: Path
    prompts: Sequence[HeldOut]
    settings: Settings
    max_new_tokens: int
    work: Path
    reference: Remembering
    eos_ids: frozenset[int]
    answers: list[list[int]]
    expected: Expected

    @classmethod
    def of(
        cls,
        target: Path,
        draft: Path,
        prompts: Sequence[HeldOut],
        settings: Settings,
        max_new_tokens: int,
        work: Path,
    ) -> _Bench:
        layers = read_draft(draft, target).config.capture_layers
        dtype: torch.dtype = getattr(torch, settings.dtype)
        loaded = Target.load(target, dtype, default_device(), layers)
        reference = Remembering(target, loaded.eos_ids(), str(loaded.device), dtype)
        depth = settings.draft_tokens
        answers = [reference.greedy(prompt.ids, max_new_tokens + depth) for prompt in prompts]
        network = official.load(draft, loaded.embed.weight.detach(), loaded.num_layers)
        expected = simulated(loaded, network, prompts, answers, max_new_tokens, depth)
        return cls(
            target,
            draft,
            prompts,
            settings,
            max_new_tokens,
            work,
            reference,
            loaded.eos_ids(),
            answers,
            expected,
        )

    def judge(self, engine: Engine, plain: bool) -> EngineParity:
        """One engine, from loading to acceptance; the first link that breaks is named."""
        version = engine.version()
        try:
            drafted = self._serve(engine, self.draft)
        except (BadInput, EngineFailed) as e:
            return EngineParity(engine.name, version, "loading", f"{e} {e.hint}".rstrip())
        alone = None
        if plain or not drafted.text.identical:
            alone = self._serve(engine, None)
        places = self.expected.places(drafted.rounds)
        link, said = self._broken(engine, drafted.text, alone, places)
        return EngineParity(
            engine.name,
            version,
            link,
            said,
            drafted.rounds.tau,
            drafted.rounds.rounds,
            tuple(places),
            drafted.text,
            drafted.alike(alone) if alone else None,
        )

    def _broken(
        self, engine: Engine, text: Text, alone: _Served | None, places: Sequence[Position]
    ) -> tuple[Link | None, str]:
        if alone is not None and not text.identical:
            if not alone.text.identical:
                return "target", (
                    f"{_differing(alone.text)} even without the draft: it runs another target, or "
                    "in another type"
                )
            return "verification", (
                f"{_differing(text)}, without the draft none: this engine is not lossless"
            )
        at = first_apart(places)
        if at is not None or len(places) < self.settings.draft_tokens:
            apart = f"position {at or 0}"
            if at is not None:
                apart += f" accepts {places[at].found:.1%}, training says {places[at].expected:.1%}"
            else:
                apart = f"it drafted {len(places)} of {self.settings.draft_tokens} positions"
            where = (
                "what was exported is not what was trained, or is read otherwise"
                if engine.name == "native"
                else "its format, or what it reads of the draft, differs"
            )
            return "acceptance", (
                f"{apart}; {where}: eagle3 diagnose {self.target} {self.draft} "
                f"--engine {engine.name}"
            )
        return None, f"agrees at every position; {text.equal} of {text.prompts} texts identical"

    def _serve(self, engine: Engine, draft: Path | None) -> _Served:
        settings = self.settings if draft is not None else replace(self.settings, draft_tokens=0)
        work = self.work / engine.name
        work.mkdir(parents=True, exist_ok=True)
        with engine.start(self.target, draft, settings, work) as running:
            before = running.metrics()
            asked = [prompt.ids for prompt in self.prompts]
            answers = running.generate(asked, Sampling(self.max_new_tokens))
            drafted = running.metrics() - before
        text = compare_text(
            self.reference, self.prompts, answers, self.eos_ids, self.max_new_tokens
        )
        return _Served(answers, text, Rounds(drafted.rounds, drafted.accepted_at))


@dataclass(frozen=True)
class _Served:
    """An engine's answers to all prompts."""

    answers: Sequence[Answer]
    text: Text
    rounds: Rounds

    def alike(self, other: _Served) -> int:
        """Prompts that both answer with the same tokens."""
        pairs = zip(self.answers, other.answers, strict=True)
        return sum(ours.tokens == theirs.tokens for ours, theirs in pairs)


def _differing(text: Text) -> str:
    if text.mismatches:
        return f"{len(text.mismatches)} of {text.prompts} texts are not the target's own"
    return f"{len(text.near_ties)} near ties in {text.tokens} tokens, more than rounding explains"
