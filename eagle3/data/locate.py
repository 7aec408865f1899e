"""From ranges of a rendered text to ranges of its tokens.

A served prompt is tokenised on its own, without the answer that follows. In the whole text the same
characters may give other tokens at the border: GPT-2's rule makes one token of two newlines at the
end of a text and two where a word follows, and a merge may reach across. Here every answer stands
after the very tokens of its prompt.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Self

from transformers import PreTrainedTokenizerBase

from eagle3.data.chat import special_ids


def locate(
    tokenizer: PreTrainedTokenizerBase, text: str, ranges: list[tuple[int, int]]
) -> tuple[list[int], list[tuple[int, int]], int]:
    """Token ids of a rendered text, and the tokens that stand for the answers in it.

    Args:
        tokenizer: a fast one, which tells where in the text its tokens lie.
        ranges: half-open ranges of characters in order, one an answer.

    Returns:
        The ids, half-open ranges of them, and how many answers begin inside a token that cannot be
        divided; such a token counts as prompt.
    """
    whole = _Tokens.of(tokenizer, text)
    special = special_ids(tokenizer)
    spans: list[tuple[int, int]] = []
    merged = 0
    for start, end in ranges:
        first = _serve(tokenizer, whole, text, (start, end), special, spans[-1][1] if spans else 0)
        merged += first is None
        if first is None:
            first = whole.begin(start)
        last = whole.begin(end)
        across = last > 0 and whole.offsets[last - 1][1] > end
        if across and whole.ids[last - 1] not in special:
            last -= 1
        spans.append((first, max(first, last)))
    return whole.ids, spans, merged


@dataclass
class _Tokens:
    """Tokens, and the characters of a text that they stand for."""

    ids: list[int]
    offsets: list[tuple[int, int]]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, text: str, shift: int = 0) -> Self:
        found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return cls(found["input_ids"], [(a + shift, b + shift) for a, b in found["offset_mapping"]])

    def begin(self, at: int) -> int:
        """The first token that begins at a character or after it."""
        return bisect_left(self.offsets, at, key=lambda offset: offset[0])

    def put(self, start: int, end: int, *parts: _Tokens) -> None:
        """Other tokens in place of some."""
        self.ids[start:end] = [i for part in parts for i in part.ids]
        self.offsets[start:end] = [o for part in parts for o in part.offsets]


def _serve(
    tokenizer: PreTrainedTokenizerBase,
    whole: _Tokens,
    text: str,
    answer: tuple[int, int],
    special: frozenset[int],
    done: int,
) -> int | None:
    """Give the prompt of an answer the tokens that it has when it is served.

    Only what follows the last special token is tokenised again: nothing merges across one.

    Args:
        answer: its range of characters.
        done: the token at which the answer before it ended.

    Returns:
        The answer's first token, or None where one token holds both ends and cannot be divided.
    """
    at, end = answer
    k = whole.begin(at)
    anchor = next((i for i in range(k - 1, done - 2, -1) if i >= 0 and whole.ids[i] in special), -1)
    if anchor < 0 and done:  # no special tokens: nothing to tokenise this prompt from
        return k if whole.offsets[k - 1][1] <= at else None
    anchor = max(anchor, 0)
    begins = whole.offsets[anchor][0] if whole.offsets else 0
    served = _Tokens.of(tokenizer, text[begins:at], begins)
    size = len(served.ids)
    if whole.ids[anchor : anchor + size] == served.ids:
        return anchor + size
    head = tokenizer.decode(served.ids)
    for border in range(max(anchor + 1, k - 2), min(k + 3, len(whole.ids) + 1)):
        if tokenizer.decode(whole.ids[anchor:border]) == head:
            whole.put(anchor, border, served)
            return anchor + size
    stop = next((i for i in range(k, len(whole.ids)) if whole.ids[i] in special), len(whole.ids))
    until = whole.offsets[stop][0] if stop < len(whole.ids) else len(text)
    if until > end:
        return None
    piece = _Tokens.of(tokenizer, text[at:until], at)
    if tokenizer.decode(served.ids + piece.ids) != head + text[at:until]:
        return None  # this tokenizer puts a space before a text
    whole.put(anchor, stop, served, piece)
    return anchor + size
