"""Prompts as sequences of words, for finding those that say the same."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u9fff]+")
"""A run of letters and digits; a character of a script that puts no spaces between words."""
_BASE = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that no word's place in a sequence is lost in the product modulo 2^64."""


def plain(text: str) -> str:
    """A text without case, and with accents written in one way: `é` may be one character or two."""
    return unicodedata.normalize("NFC", text).casefold()


class Words:
    """Turns texts into hashes of their words, each word hashed once. The hashes are the same in
    every process, unlike Python's own."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def __call__(self, text: str) -> Hashes:
        """uint64 [W]: a hash for each word of a text, case and punctuation aside."""
        return np.array([self._hash(w) for w in _WORD.findall(plain(text))], dtype=np.uint64)

    def _hash(self, word: str) -> int:
        found = self._known.get(word)
        if found is None:
            digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            found = self._known[word] = int.from_bytes(digest, "big")
        return found


def sequences(words: Hashes, length: int) -> Hashes:
    """uint64 [W - length + 1]: a hash for each run of `length` words; none when there are fewer."""
    if len(words) < length:
        return np.empty(0, dtype=np.uint64)
    return joined(np.lib.stride_tricks.sliding_window_view(words, length))


def joined(rows: Hashes) -> Hashes:
    """uint64 [N] of [N, length]: one hash for the hashes of each row, in their order."""
    found = np.zeros(len(rows), dtype=np.uint64)
    for column in rows.T:
        found = found * _BASE + column
    return found


def frequent(sets: Iterable[Hashes], most: int) -> Hashes:
    """The hashes, ascending, that are in more than `most` of the sets (each without copies)."""
    parts = list(sets)
    if not parts:
        return np.empty(0, dtype=np.uint64)
    values, counts = np.unique(np.concatenate(parts), return_counts=True)
    return values[counts > most]
