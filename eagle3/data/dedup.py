"""Copies and near copies among prompts: the same lesson again teaches nothing, and flatters a
held-out figure.

Near copies: MinHash over 5-word sequences, candidates by banding, then the Jaccard similarity
itself (Broder 1997; used so on language-model data by Lee et al. 2022, arXiv 2107.06499).
Wording that many prompts share, such as a fixed instruction around each question of an
application's log, says nothing about whether two of them are the same: sequences in more than a
tenth of the prompts do not count.

Shapes: N prompts, M hash functions, B bands.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eagle3.data.words import Hashes, Words, frequent, joined, sequences

LENGTH = 5
"""Words in a sequence."""
BANDS, ROWS = 14, 6
"""A pair of similarity s meets in at least one band with probability 1 - (1 - s^6)^14: 98.6% at
0.8, 99.96% at 0.9, and 20% at 0.5, where the check of the similarity costs a moment."""
COMMON_SHARE, COMMON_LEAST = 10, 20
"""Shared wording: in more than one of ten prompts, and in more than 20."""
_SEED = 2107_06499


@dataclass(frozen=True)
class Copy:
    """A prompt that is left out, and the one it repeats, by their places in the list."""

    index: int
    of: int
    similarity: float
    """1 for one that is the same but for case, punctuation and white space."""


def near_copies(texts: list[str], threshold: float) -> list[Copy]:
    """The texts that repeat an earlier one of the list; the earliest of each group stays.

    Args:
        threshold: least Jaccard similarity of the two sets of 5-word sequences. A text of fewer
            words is one sequence, so it is repeated by its equal alone.
    """
    sets = _without_common(_sequence_sets(texts))
    groups = _groups(sets)
    kept: dict[tuple[int, int], list[int]] = {}
    found = []
    for i, own in enumerate(sets):
        keys = [(band, int(g)) for band, g in enumerate(groups[i]) if g >= 0]
        candidates = sorted({j for key in keys for j in kept.get(key, ())})
        best = max(((_jaccard(own, sets[j]), -j) for j in candidates), default=(0.0, 0))
        if candidates and best[0] >= threshold:
            found.append(Copy(i, -best[1], best[0]))
            continue
        for key in keys:
            kept.setdefault(key, []).append(i)
    return found


def _sequence_sets(texts: list[str]) -> list[Hashes]:
    words = Words()
    found = []
    for text in texts:
        hashes = words(text)
        found.append(np.unique(sequences(hashes, min(LENGTH, len(hashes)) or 1)))
    return found


def _without_common(sets: list[Hashes]) -> list[Hashes]:
    common = frequent(sets, max(COMMON_LEAST, len(sets) // COMMON_SHARE))
    if not len(common):
        return sets
    return [s[~np.isin(s, common, assume_unique=True)] for s in sets]


def _groups(sets: list[Hashes]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """int64 [N, B]: in each band, the number of the group of prompts with equal MinHashes there;
    -1 for a prompt that is alone, or that has no sequence left."""
    rng = np.random.default_rng(_SEED)
    odd, plus = rng.integers(0, 2**63, (2, BANDS * ROWS), dtype=np.uint64)
    odd = odd * np.uint64(2) + np.uint64(1)
    bands = np.zeros((len(sets), BANDS), dtype=np.uint64)
    for i, own in enumerate(sets):
        if len(own):
            hashed = own[:, None] * odd + plus  # modulo 2^64; the high half is well mixed
            least_M = (hashed >> np.uint64(32)).min(axis=0)
            bands[i] = joined(least_M.reshape(BANDS, ROWS))
    found = np.full((len(sets), BANDS), -1, dtype=np.int64)
    filled = np.array([len(s) > 0 for s in sets], dtype=bool)
    for band in range(BANDS):
        _, group, counts = np.unique(bands[filled, band], return_inverse=True, return_counts=True)
        found[filled, band] = np.where(counts[group] > 1, group, -1)
    return found


def _jaccard(a: Hashes, b: Hashes) -> float:
    both = len(np.intersect1d(a, b, assume_unique=True))
    return both / (len(a) + len(b) - both)
