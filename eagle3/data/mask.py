"""Which rows of a conversation teach the draft.

Shapes: L tokens, S training-time-test steps.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def supervised_rows(spans: Iterable[tuple[int, int]], length: int, steps: int) -> Tensor:
    """Boolean [S, L]: row j teaches step k iff x[j+1] … x[j+2+k] lie in one answer.

    A row is judged by its input token x[j+1]. With an answer that starts at P, row P-1 (whose
    feature is the prompt's last) takes in the answer's first token and predicts its second: it is
    the first supervised row (EAGLE-3, training-time test; drafting starts at exactly these rows).

    Args:
        spans: half-open ranges of answer tokens, a generated end-of-turn included.
    """
    rows = torch.zeros(steps, length, dtype=torch.bool)
    for start, end in spans:
        assert 0 <= start <= end <= length, f"span {start, end} of {length} tokens"
        for k in range(steps):
            # The last row is the one whose label x[j+2+k] is the span's last token.
            rows[k, max(start - 1, 0) : max(end - 2 - k, 0)] = True
    return rows
