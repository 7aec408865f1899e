"""What is left of a prompt set: one of each prompt, and none that a figure is measured on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

from eagle3.config import PromptsConfig
from eagle3.data.contamination import overlaps
from eagle3.data.dedup import near_copies
from eagle3.data.prompts import RawPrompt
from eagle3.data.records import Message
from eagle3.data.words import plain

EXAMPLES = 3
"""Prompts that a warning names."""


@dataclass(frozen=True)
class LeftOut:
    """A prompt that is not used, and the one it repeats or holds."""

    prompt: RawPrompt
    other: RawPrompt
    share: float


@dataclass
class Tally:
    """What is left out of a set, and why."""

    unreadable: list[str] = field(default_factory=list)
    """What is wrong with each row."""
    duplicates: list[LeftOut] = field(default_factory=list)
    near_duplicates: list[LeftOut] = field(default_factory=list)
    too_long: int = 0
    contaminated: list[LeftOut] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """By name of the field."""
        return {k: v if isinstance(v, int) else len(v) for k, v in vars(self).items()}

    def warnings(self, config: PromptsConfig) -> list[str]:
        """A sentence for each reason, with the first few prompts."""
        counts = self.counts()
        texts = {
            "unreadable": f"rows are left out (prompts.bad_rows): {'; '.join(self.unreadable[:3])}",
            "duplicates": f"copies are left out: {_told(self.duplicates, 'repeats')}",
            "near_duplicates": "near copies are left out (prompts.near_duplicates): "
            + _told(self.near_duplicates, "nearly repeats"),
            "too_long": f"prompts of more than {config.max_prompt_tokens} tokens "
            "(prompts.max_prompt_tokens) are left out",
            "contaminated": "training prompts are left out (prompts.contamination): "
            + _told(self.contaminated, "holds the held-out or excluded"),
        }
        return [f"{counts[reason]} {text}" for reason, text in texts.items() if counts[reason]]


def content_id(messages: list[Message]) -> str:
    """16 hex digits of what was asked; case and white space do not count, nor do answers."""
    asked = [m for m in messages if m["role"] != "assistant"]
    texts = [[m["role"], " ".join(plain(m["content"]).split())] for m in asked]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]


def without_copies(prompts: list[RawPrompt]) -> tuple[list[RawPrompt], list[LeftOut]]:
    """One prompt of each content. A held-out copy wins, so that nothing held out is trained on."""
    found: dict[str, RawPrompt] = {}
    left_out = []
    for prompt in prompts:
        key = content_id(prompt.messages)
        other = found.get(key)
        if other is None:
            found[key] = prompt
        elif prompt.split == "heldout" and other.split != "heldout":
            found[key] = prompt
            left_out.append(LeftOut(other, prompt, 1.0))
        else:
            left_out.append(LeftOut(prompt, other, 1.0))
    return list(found.values()), left_out


def without_near_copies(
    prompts: list[RawPrompt], threshold: float | None
) -> tuple[list[RawPrompt], list[LeftOut]]:
    """The prompts that do not nearly repeat another one; held-out ones win, then earlier ones."""
    if threshold is None:
        return prompts, []
    ordered = sorted(prompts, key=lambda p: p.split != "heldout")
    copies = near_copies([" ".join(asked(p)) for p in ordered], threshold)
    left_out = [LeftOut(ordered[c.index], ordered[c.of], c.similarity) for c in copies]
    return _without(prompts, left_out), left_out


def without_tests(
    train: list[RawPrompt], tests: list[RawPrompt], threshold: float | None
) -> tuple[list[RawPrompt], list[LeftOut]]:
    """The training prompts that hold no held-out or excluded prompt."""
    if threshold is None:
        return train, []
    found = overlaps([asked(p) for p in train], [asked(p) for p in tests], threshold)
    left_out = [LeftOut(train[o.train], tests[o.test], o.share) for o in found]
    return _without(train, left_out), left_out


def asked(prompt: RawPrompt) -> list[str]:
    """The texts of the user's messages."""
    return [m["content"] for m in prompt.messages if m["role"] == "user"]


def _told(left_out: list[LeftOut], verb: str) -> str:
    examples = []
    for x in left_out[:EXAMPLES]:
        share = f" ({x.share:.0%})" if x.share < 1 else ""
        file, _, row = x.other.where.rpartition(", ")
        other = row if x.prompt.where.startswith(f"{file}, ") else x.other.where
        examples.append(f"{x.prompt.where} {verb} {other}{share}")
    if len(left_out) > EXAMPLES:
        examples.append("…")
    return "; ".join(examples)


def _without(prompts: list[RawPrompt], left_out: list[LeftOut]) -> list[RawPrompt]:
    gone = {id(x.prompt) for x in left_out}
    return [p for p in prompts if id(p) not in gone]
