"""The draft vocabulary: which target ids the draft can propose (EAGLE-3 code: `d2t`, `t2d`).

Vd draft vocabulary, V target vocabulary. `d2t` int64 [Vd] holds offsets: target id = i + d2t[i].
`t2d` bool [V] is True where a target id is in the draft vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def count(answers: Iterable[Tensor], vocab_size: int) -> Tensor:
    """How often each target id occurs in answers (int64 ids), int64 [V]."""
    counts_V = torch.zeros(vocab_size, dtype=torch.int64)
    for ids in answers:
        counts_V += torch.bincount(ids, minlength=vocab_size)
    return counts_V


def choose(counts_V: Tensor, size: int, always: Iterable[int] = ()) -> Tensor:
    """The ids to keep, ascending: `always`, then the most frequent, ties and gaps by lowest id.

    Args:
        counts_V: how often each target id occurs in the answers of the training data, int64 [V].
        size: Vd; capped at V.
        always: ids that must be in (special and end-of-turn ids).

    Returns:
        int64 [min(size, V)], ascending.
    """
    vocab_size = len(counts_V)
    size = min(size, vocab_size)
    forced = sorted({i for i in always if 0 <= i < vocab_size})
    if len(forced) > size:
        raise ValueError(f"draft vocabulary of {size} cannot hold {len(forced)} special ids")
    rank = counts_V.clone()
    rank[forced] = counts_V.max() + 1
    kept = torch.argsort(rank, descending=True, stable=True)[:size]
    return kept.sort().values


def maps(kept_D: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """`d2t` and `t2d` of the kept ids."""
    d2t = kept_D - torch.arange(len(kept_D))
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[kept_D] = True
    return d2t, t2d


def kept_ids(d2t_D: Tensor) -> Tensor:
    """The target ids that `d2t` stands for, int64 [Vd]."""
    return d2t_D + torch.arange(len(d2t_D), device=d2t_D.device)


def check(d2t_D: Tensor, t2d_V: Tensor) -> None:
    """Raise ValueError when the two maps disagree or `d2t` is not strictly ascending."""
    ids = kept_ids(d2t_D)
    if len(ids) and (int(ids[0]) < 0 or int(ids[-1]) >= len(t2d_V)):
        raise ValueError("d2t points outside the target vocabulary")
    if bool((ids[1:] <= ids[:-1]).any()):
        raise ValueError("d2t is not strictly ascending: is it offsets, as it must be?")
    if int(t2d_V.sum()) != len(ids) or not bool(t2d_V[ids].all()):
        raise ValueError("d2t and t2d name different draft vocabularies")


def digest(d2t_D: Tensor) -> str:
    """SHA-256 of the kept ids: what binds a draft to its vocabulary."""
    return hashlib.sha256(kept_ids(d2t_D).to(torch.int64).numpy().tobytes()).hexdigest()
