"""Rows that are token ids already: a whole conversation, and which of its tokens are answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Any

from transformers import PreTrainedTokenizerBase

from eagle3.data.chat import encode
from eagle3.data.records import Message
from eagle3.errors import BadInput

IGNORED = -100
"""The label of a token that is not an answer's, in torch's cross-entropy."""
SAME = 0.97
"""Share of a set's tokens that must come back when they are decoded and encoded again. Measured in
docs/experiments.md: all of a text's, nearly all of an answer that was sampled (which is not always
split as text would be), nine tenths or less of another vocabulary's."""
LOOK_ROWS, LOOK_TOKENS, LOOK_LEAST = 200, 256, 500
"""Rows of a set that are compared, tokens of each, and tokens below which nothing is concluded."""


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


def check_tokens(where: str, tokens: Tokens, facts: Mapping[str, Any]) -> None:
    """Refuse a row of ids that cannot be the target's: a draft would learn noise from them.

    Args:
        facts: `target.json`.

    Raises:
        BadInput: says how it was found out.
    """
    known = {facts["resolved"], facts["ref"], facts["tokenizer_sha256"]}
    known |= {str(name).split("@")[0] for name in known}
    if tokens.tokenizer is not None and tokens.tokenizer not in known:
        raise BadInput(
            f"{where}: the ids are those of the tokenizer {tokens.tokenizer}, the target is "
            f"{facts['ref']}",
            _hint(facts),
        )
    if (top := max(tokens.ids)) >= facts["vocab_size"]:
        raise BadInput(
            f"{where}: token id {top:,} is outside the target's vocabulary of "
            f"{facts['vocab_size']:,}: the ids are those of another tokenizer",
            _hint(facts),
        )


def check_round_trip(
    rows: Sequence[tuple[str, Tokens]], tokenizer: PreTrainedTokenizerBase, facts: Mapping[str, Any]
) -> None:
    """Refuse a set of ids that are in the vocabulary and yet mean something else: decoded, such
    ids are a jumble, and a jumble is split into tokens in another way.

    Args:
        rows: where each row stands, and its tokens.

    Raises:
        BadInput: names the row of which least comes back.
    """
    shares, same, total = [], 0, 0
    for where, tokens in rows[:: max(1, len(rows) // LOOK_ROWS)]:
        ids = tokens.ids[:LOOK_TOKENS]
        matched = num_that_come_back(ids, tokenizer)
        shares.append((matched / len(ids), where))
        same, total = same + matched, total + len(ids)
    if total >= LOOK_LEAST and same / total < SAME:
        share, where = min(shares)
        raise BadInput(
            f"decoded and encoded again, only {same / total:.0%} of the ids come back (of {where}, "
            f"{share:.0%}): the ids are those of another tokenizer",
            _hint(facts),
        )


def num_that_come_back(ids: list[int], tokenizer: PreTrainedTokenizerBase) -> int:
    """How many ids are there again, in their order, when they are decoded and encoded."""
    again = encode(tokenizer, tokenizer.decode(ids, skip_special_tokens=False))
    blocks = SequenceMatcher(None, ids, again, autojunk=False).get_matching_blocks()
    return sum(block.size for block in blocks)


def _hint(facts: Mapping[str, Any]) -> str:
    return f"tokenise it with the tokenizer of {facts['resolved']}, or give messages"


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
