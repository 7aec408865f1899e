"""One forward of the target over whole conversations, and what training needs of it.

Its cost is to stay within a tenth of the bare forward (benchmarks/extraction.py): three layers are
hooked, and logits exist for the rows of answers alone, a few at a time.

Shapes: B sequences, L rows, H hidden size, V vocabulary, R rows whose logits are wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from eagle3.data.features import Columns, Sample, TokenSequence
from eagle3.data.topk import select
from eagle3.target import Target

BATCH_TOKENS = 4096
"""Rows of one forward, padding included."""

LOGIT_ROWS = 256
"""Rows whose logits are held at once: 50 MB for a vocabulary of 49,152 in float32."""


def captured_samples(target: Target, sequences: Sequence[TokenSequence]) -> list[Sample]:
    """The samples of a training batch, in its order."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].ids))
    found: dict[int, Sample] = {}
    done = 0
    for batch in grouped([sequences[i] for i in order]):
        for sequence, rows in zip(batch, target_rows(target, batch), strict=True):
            found[order[done]] = Sample.of(sequence.ref(), rows)
            done += 1
    return [found[i] for i in range(len(sequences))]


def grouped(sequences: Sequence[TokenSequence]) -> Iterator[list[TokenSequence]]:
    """Consecutive sequences whose padded rows stay within `BATCH_TOKENS`."""
    batch: list[TokenSequence] = []
    longest = 0
    for sequence in sequences:
        longest = max(longest, len(sequence.ids))
        if batch and (len(batch) + 1) * longest > BATCH_TOKENS:
            yield batch
            batch, longest = [], len(sequence.ids)
        batch.append(sequence)
    if batch:
        yield batch


@torch.no_grad()
def target_rows(
    target: Target, sequences: Sequence[TokenSequence], top_k: int | None = None
) -> list[Columns]:
    """What the target says about each sequence, teacher-forced: the columns of a shard, on the CPU.

    Sequences are padded on the right, where no real row can see the padding. The tensors are
    ordinary ones: inference tensors could not be trained on.

    Args:
        top_k: give this many probabilities of each wanted row in place of the hidden state.
    """
    batch, longest = len(sequences), max(len(s.ids) for s in sequences)
    ids_BL = torch.zeros(batch, longest, dtype=torch.int64)
    for i, sequence in enumerate(sequences):
        ids_BL[i, : len(sequence.ids)] = sequence.ids
    cache = target.new_cache(longest, batch)
    hidden, features = [], []
    stretch = target.rows_at_once(batch, longest)
    for start in range(0, longest, stretch):
        rows_BL = ids_BL[:, start : start + stretch].to(target.device)
        hidden_BLH, features_BLF = target.forward(rows_BL, cache, capture=True)
        assert features_BLF is not None
        cache.advance(rows_BL.shape[1])
        hidden.append(hidden_BLH)
        features.append(features_BLF.to("cpu", torch.bfloat16))
    hidden_BLH, features_BLF = torch.cat(hidden, 1), torch.cat(features, 1)
    out = []
    for i, sequence in enumerate(sequences):
        length = len(sequence.ids)
        rows = {
            "input_ids": sequence.ids,
            "features": features_BLF[i, :length],
            **_predictions(target, hidden_BLH[i, :length], sequence.spans, top_k),
        }
        if top_k is None:
            rows["hidden"] = hidden_BLH[i, :length].to("cpu", torch.bfloat16)
        out.append(rows)
    return out


def _predictions(
    target: Target, hidden_LH: Tensor, spans: list[tuple[int, int]], top_k: int | None
) -> Columns:
    """`argmax` (int32 [L]) and `lse` (float32 [L]) of the logits from the row before each answer to
    the answer's last row; -1 and 0 elsewhere. With `top_k` also `top_ids` and `top_probs`."""
    length = len(hidden_LH)
    out = {"argmax": torch.full((length,), -1, dtype=torch.int32), "lse": torch.zeros(length)}
    if top_k is not None:
        k = min(top_k, target.vocab_size)
        out["top_ids"] = torch.zeros(length, k, dtype=torch.int32)
        out["top_probs"] = torch.zeros(length, k, dtype=torch.bfloat16)
    wanted = torch.zeros(length, dtype=torch.bool)
    for start, end in spans:
        wanted[max(start - 1, 0) : end] = True
    for rows_R in wanted.nonzero()[:, 0].split(LOGIT_ROWS):
        logits_RV = target.logits(hidden_LH[rows_R.to(hidden_LH.device)]).float()
        lse_R = logits_RV.logsumexp(-1)
        out["argmax"][rows_R] = logits_RV.argmax(-1).to("cpu", torch.int32)
        out["lse"][rows_R] = lse_R.cpu()
        if top_k is not None:
            out["top_ids"][rows_R], out["top_probs"][rows_R] = select(logits_RV, lse_R, top_k)
    return out
