"""Training prompts that hold a held-out or benchmark prompt: figures measured on those are worth
nothing if the draft was trained on them.

The rule of Tülu 3 (Lambert et al. 2024, arXiv 2411.15124, section 3.2): a training prompt is
contaminated when it has at least half of the words of a test prompt in sequences of 8 words that
both have. Sequences that more than 10 training prompts have are common wording, and do not count
(Smith et al. 2022, arXiv 2201.11990, after Brown et al. 2020, arXiv 2005.14165, appendix C). A
test prompt of fewer than 8 words contaminates a prompt that says exactly that.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from eagle3.data.words import Hashes, Words, frequent, sequences

LENGTH = 8
"""Words in a sequence."""
COMMON = 10
"""A sequence in more training prompts than this is common wording."""


@dataclass(frozen=True)
class Overlap:
    """A training prompt that holds a test prompt, by their places in the two lists."""

    train: int
    test: int
    share: float
    """Of the test prompt's words, leaving out common wording."""


def overlaps(train: list[list[str]], test: list[list[str]], threshold: float) -> list[Overlap]:
    """For each training prompt that holds a test prompt, the one of which it has most.

    Args:
        train: user messages of each training prompt.
        test: user messages of each test prompt, compared one by one.
        threshold: least share of a message's words.
    """
    words = Words()
    train_words = [[words(text) for text in prompt] for prompt in train]
    sets = [np.unique(_all_sequences(prompt)) for prompt in train_words]
    common = frequent(sets, COMMON)
    short: dict[bytes, int] = {}
    long: list[_Message] = []
    for number, prompt in enumerate(test):
        for turn, text in enumerate(prompt):
            message = words(text)
            if len(message) >= LENGTH:
                long.append(_Message(number, message, common))
            elif turn == 0 and len(message):  # "Go on." as a later turn is no benchmark's question
                short.setdefault(message.tobytes(), number)
    where: dict[int, list[int]] = defaultdict(list)
    for i, one in enumerate(long):
        for value in one.values:
            where[value].append(i)
    found = []
    for number, (prompt_words, own) in enumerate(zip(train_words, sets, strict=True)):
        shared = np.array([value for value in own.tolist() if value in where], dtype=np.uint64)
        candidates = {i for value in shared.tolist() for i in where[value]}
        shares = [(long[i].share(shared), -long[i].test) for i in candidates]
        best = max(shares, default=(0.0, 0))
        if prompt_words and prompt_words[0].tobytes() in short:
            best = (1.0, -short[prompt_words[0].tobytes()])
        if best[0] >= threshold:
            found.append(Overlap(number, -best[1], best[0]))
    return found


class _Message:
    """A message of a test prompt, and its sequences that are not common wording."""

    def __init__(self, test: int, words: Hashes, common: Hashes) -> None:
        self.test = test
        own = sequences(words, LENGTH)
        self._own = own
        self._told = ~np.isin(own, common)
        self.values: set[int] = set(own[self._told].tolist())
        self._words = self._covered(self._told)

    def share(self, shared: Hashes) -> float:
        """Share of the words under sequences that are not common and that are in `shared`."""
        return self._covered(self._told & np.isin(self._own, shared)) / self._words

    def _covered(self, sequences_there: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
        covered = np.zeros(len(sequences_there) + LENGTH - 1, dtype=bool)
        for offset in range(LENGTH):
            covered[offset : offset + len(sequences_there)] |= sequences_there
        return int(covered.sum())


def _all_sequences(messages: list[Hashes]) -> Hashes:
    parts = [sequences(words, LENGTH) for words in messages]
    return np.concatenate([*parts, np.empty(0, dtype=np.uint64)])
