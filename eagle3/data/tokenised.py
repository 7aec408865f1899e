"""Rows that are token ids already: a whole conversation, and which of its tokens are answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from transformers import PreTrainedTokenizerBase

from eagle3.data.chat import encode
from eagle3.data.records import Message
from eagle3.errors import BadInput

IGNORED = -100
"""The label of a token that is not an answer's, in torch's cross-entropy."""
SAME = 0.5
"""Share of a row's tokens that must survive being decoded and encoded again. The tokenizer that
made them gives 1.0 or nearly so; another one gives back other ids, and seldom as many."""


@dataclass(frozen=True)
class Tokens:
    """A conversation as its source has tokenised it."""

    ids: list[int]
    spans: list[tuple[int, int]]
    """Half-open ranges of `ids` that are answers."""
    tokenizer: str | None = None
    """Who made the ids, where the row says so: a name, or the sha256 of `tokenizer.json`."""


def read_tokens(where: str, row: Mapping[str, Any]) -> Tokens:
    """A row with `input_ids` and its answers: `loss_mask`, `spans` or `labels`.

    Raises:
        ValueError: names the place and what is wrong there.
    """
    ids = _integers(where, "input_ids", row["input_ids"])
    if row.get("spans") is not None:
        spans = _spans(where, row["spans"])
    elif row.get("loss_mask") is not None:
        spans = _runs(_as_long(where, "loss_mask", row["loss_mask"], ids))
    elif row.get("labels") is not None:
        labels = _as_long(where, "labels", row["labels"], ids)
        if any(a != b for a, b in zip(labels, ids, strict=True) if a != IGNORED):
            raise ValueError(
                f"{where}: labels differ from input_ids; expected the same ids, or {IGNORED}: "
                "unshifted, as transformers takes them"
            )
        spans = _runs([label != IGNORED for label in labels])
    else:
        raise ValueError(f"{where}: input_ids need a loss_mask, spans or labels beside them")
    ends = [0, *(edge for span in spans for edge in span), len(ids)]
    if ends != sorted(ends) or not spans or spans[0][0] == 0 or any(a == b for a, b in spans):
        raise ValueError(
            f"{where}: the answers {spans} do not fit {len(ids)} tokens; expected ranges in order, "
            "the first after a prompt"
        )
    return Tokens(ids, spans, None if row.get("tokenizer") is None else str(row["tokenizer"]))


def check_tokens(
    where: str, tokens: Tokens, tokenizer: PreTrainedTokenizerBase, facts: Mapping[str, Any]
) -> None:
    """Refuse ids that another tokenizer made: a draft would learn noise from them.

    Args:
        facts: `target.json`.

    Raises:
        BadInput: says how it was found out.
    """
    hint = f"tokenise it with the tokenizer of {facts['resolved']}, or give messages"
    known = {facts["resolved"], facts["ref"], facts["tokenizer_sha256"]}
    known |= {str(name).split("@")[0] for name in known}
    if tokens.tokenizer is not None and tokens.tokenizer not in known:
        raise BadInput(
            f"{where}: the ids are those of the tokenizer {tokens.tokenizer}, the target is "
            f"{facts['ref']}",
            hint,
        )
    if (top := max(tokens.ids)) >= facts["vocab_size"]:
        raise BadInput(
            f"{where}: token id {top:,} is outside the target's vocabulary of "
            f"{facts['vocab_size']:,}: the ids are those of another tokenizer",
            hint,
        )
    again = encode(tokenizer, tokenizer.decode(tokens.ids, skip_special_tokens=False))
    same = sum(a == b for a, b in zip(again, tokens.ids, strict=False)) / len(tokens.ids)
    shared = len(set(again) & set(tokens.ids)) / len(set(tokens.ids))
    if max(same, shared) < SAME:  # one merge early in the row shifts all that follow it
        raise BadInput(
            f"{where}: decoded and encoded again, only {max(same, shared):.0%} of its ids come "
            "back: the ids are those of another tokenizer",
            hint,
        )


def as_messages(tokens: Tokens, tokenizer: PreTrainedTokenizerBase) -> list[Message]:
    """What was asked and answered, as text: to compare with other prompts, and to be looked at."""
    messages: list[Message] = []
    end = 0
    for start, stop in tokens.spans:
        for role, part in (("user", (end, start)), ("assistant", (start, stop))):
            text = tokenizer.decode(tokens.ids[slice(*part)], skip_special_tokens=True)
            messages.append({"role": role, "content": str(text)})
        end = stop
    return messages


def _integers(where: str, name: str, values: Any) -> list[int]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise ValueError(f"{where}: {name} must be a list of integers that is not empty")
    if not all(isinstance(v, int) for v in values):
        raise ValueError(f"{where}: {name} holds something other than integers")
    if name == "input_ids" and min(values) < 0:
        raise ValueError(f"{where}: input_ids holds {min(values)}; a token id is not negative")
    return list(values)


def _as_long(where: str, name: str, values: Any, ids: list[int]) -> list[int]:
    found = _integers(where, name, values)
    if len(found) != len(ids):
        raise ValueError(f"{where}: {name} has {len(found)} entries, input_ids {len(ids)}")
    return found


def _runs(mask: Sequence[Any]) -> list[tuple[int, int]]:
    spans, at = [], 0
    for marked, run in groupby(map(bool, mask)):
        length = len(list(run))
        if marked:
            spans.append((at, at + length))
        at += length
    return spans


def _spans(where: str, values: Any) -> list[tuple[int, int]]:
    try:
        spans = [(start, end) for start, end in values]
    except (TypeError, ValueError):
        spans = [("", "")]
    if not all(isinstance(edge, int) for span in spans for edge in span):
        raise ValueError(f"{where}: spans must be a list of [start, end) pairs of integers")
    return spans
