"""Training on the answers that a prompt set brings: they become samples, none is written anew."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from eagle3.data.records import Message, Prompt, Response
from eagle3.data.spans import Reader, Reading, Sample
from eagle3.errors import BadInput
from eagle3.run import Context

REPORT_EVERY_S = 2.0
BEYOND = "the answer begins beyond the longest sample"
SHORT = "the answer is of one token: nothing follows it that a draft could propose"
NONE = "the conversation has no answer"


@dataclass
class Tally:
    """What became of the conversations."""

    conversations: int = 0
    samples: int = 0
    answers: int = 0
    """Supervised answers."""
    split: int = 0
    """Conversations that were too long for one sample and were split between their turns."""
    rewritten: int = 0
    """Conversations that became several samples since the template shows history otherwise."""
    truncated: int = 0
    """Samples that were cut at the longest length."""
    tokens_cut: int = 0
    merged: int = 0
    """Answers whose first token also holds the end of the prompt."""
    left_out: int = 0
    """Conversations of which nothing is supervised."""
    refused: Counter[str] = field(default_factory=Counter)
    """Answers that are not supervised, by reason."""

    def summary(self) -> dict[str, Any]:
        return {**vars(self), "refused": dict((+self.refused).most_common())}

    @classmethod
    def of(cls, summary: Mapping[str, Any]) -> Self:
        """What `summary` gave."""
        return cls(**{**summary, "refused": Counter(summary["refused"])})

    def warnings(self) -> list[str]:
        """What a user should know, in sentences."""
        found = []
        if self.left_out:
            found.append(
                f"{self.left_out} of {self.conversations} conversations are left out: no answer of "
                "theirs can be supervised"
            )
        found += [
            f"{n} answers are not supervised: {why}" for why, n in (+self.refused).most_common()
        ]
        if self.rewritten:
            found.append(
                f"the chat template rewrites history: {self.rewritten} conversations became "
                "several samples, each answer after the text that it was written after"
            )
        if self.split:
            found.append(f"{self.split} long conversations were split between their turns")
        if self.truncated:
            found.append(f"{self.truncated} samples were cut ({self.tokens_cut:,} tokens in all)")
        if self.merged:
            found.append(
                f"{self.merged} answers share their first token with the prompt; it counts as "
                "the prompt's"
            )
        return found


def given_responses(
    ctx: Context, reader: Reader, prompts: list[Prompt], end_ids: frozenset[int], limit: int
) -> list[Response]:
    """The training samples that conversations with answers make.

    Conversations that came as tokens keep them. What is longer than `limit` tokens is split between
    its turns, or cut where a single turn is too long; nothing is dropped without being counted.

    Raises:
        BadInput: nothing can be supervised.
    """
    tally, found = Tally(), []
    reported = time.monotonic()
    for n, prompt in enumerate(prompts):
        ctx.check_stop("the answers of the set are read again")
        found += responses(reader, prompt, end_ids, limit, tally)
        if time.monotonic() - reported >= REPORT_EVERY_S:
            reported = time.monotonic()
            ctx.progress.progress(n, len(prompts), "conversation")
    for warning in tally.warnings():
        ctx.progress.warning(warning)
    if prompts and not found:
        why = "; ".join(f"{n} answers: {why}" for why, n in (+tally.refused).most_common(3))
        raise BadInput(
            f"nothing can be supervised in the answers of {len(prompts)} conversations ({why})",
            "let the target write the answers itself: regenerate.mode: target",
        )
    ctx.summary["given"] = tally.summary()
    return found


def responses(
    reader: Reader, prompt: Prompt, end_ids: frozenset[int], limit: int, tally: Tally
) -> list[Response]:
    """The samples of one conversation; the first has its id, further ones `id-1`, …"""
    tally.conversations += 1
    if prompt.ids is not None and prompt.spans is not None:
        ended = prompt.ids[prompt.spans[-1][1] - 1] in end_ids
        samples = [Sample(prompt.ids, prompt.spans, ended)]
    else:
        samples = _read(reader, prompt, limit, tally)
    kept = [cut for sample in samples if (cut := _cut(sample, limit, tally)).spans]
    tally.left_out += not kept
    tally.samples += len(kept)
    tally.answers += sum(len(sample.spans) for sample in kept)
    tally.merged += sum(sample.merged for sample in kept)
    return [
        Response(
            id=f"{prompt.id}-{n}" if n else prompt.id,
            split=prompt.split,
            ids=sample.ids,
            spans=sample.spans,
            finish="eos" if sample.ended else "length",
        )
        for n, sample in enumerate(kept)
    ]


def _read(reader: Reader, prompt: Prompt, limit: int, tally: Tally) -> list[Sample]:
    parts = list(_parts(reader, prompt.messages, prompt, limit))
    tally.split += len(parts) > 1
    tally.rewritten += any(len(part.samples) > 1 for part in parts)
    for part in parts:
        tally.refused += part.refused
    if not any(message["role"] == "assistant" for message in prompt.messages):
        tally.refused[NONE] += 1
    return [sample for part in parts for sample in part.samples]


def _parts(
    reader: Reader, messages: list[Message], prompt: Prompt, limit: int
) -> Iterator[Reading]:
    """The conversation read whole, or in halves of its turns, each after the system's messages."""
    reading = reader.read(messages, prompt.tools)
    system, turns = _turns(messages)
    if len(turns) < 2 or all(len(sample.ids) <= limit for sample in reading.samples):
        yield reading
        return
    middle = len(turns) // 2
    for half in (turns[:middle], turns[middle:]):
        yield from _parts(reader, [*system, *(m for turn in half for m in turn)], prompt, limit)


def _turns(messages: list[Message]) -> tuple[list[Message], list[list[Message]]]:
    """The messages before the first user's, and the rest in turns that begin with a user's."""
    system: list[Message] = []
    turns: list[list[Message]] = []
    before = ""
    for message in messages:
        if message["role"] == "user" and before != "user":
            turns.append([])
        (turns[-1] if turns else system).append(message)
        before = message["role"]
    return system, turns


def _cut(sample: Sample, limit: int, tally: Tally) -> Sample:
    """The first `limit` tokens, without answers of which less than two tokens are left."""
    length = len(sample.ids)
    kept = []
    for start, end in sample.spans:
        if end - start < 2:
            tally.refused[SHORT] += 1
        elif limit - start < 2:
            tally.refused[BEYOND] += 1
        else:
            kept.append((start, min(end, limit)))
    if length <= limit:
        return replace(sample, spans=kept)
    if kept:
        tally.truncated += 1
        tally.tokens_cut += length - limit
    whole = sample.ended and sample.spans[-1][1] <= limit
    return replace(sample, ids=sample.ids[:limit], spans=kept, ended=whole)
