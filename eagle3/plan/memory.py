"""Memory of a training step and of reading the target, by what takes it.

A ledger: each line below is a tensor that exists at the peak of a step, which is where backward
begins. A test holds the sum within 15% of what real steps take.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import computed_field

from eagle3.config import TrainConfig
from eagle3.plan.shape import DraftShape, Figures, TargetShape

MOMENTS = 2
"""Numbers that AdamW keeps for each parameter."""
FLOAT32 = 4
BFLOAT16 = 2


class Memory(Figures):
    """Bytes of one process, at the peak."""

    target: int = 0
    """The target's weights, where this process holds them."""
    reading: int = 0
    """What a forward of the target takes beside its weights."""
    frozen: int = 0
    """Rows of the target that training reads: embedding and head."""
    draft: int = 0
    """Trained weights, with a copy to compute with where that has another type."""
    gradients: int = 0
    optimizer: int = 0
    batch: int = 0
    """Features of the tokens of one step."""
    activations: int = 0
    """What the unrolled draft keeps for the backward pass."""
    loss: int = 0
    """The target's distributions, logits of a chunk, gradients of the head."""
    overhead: int = 0
    """The runtime, and what the allocator holds without need."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in type(self).model_fields)


@dataclass(frozen=True)
class Rows:
    """The rows of one step on one process."""

    tokens: int
    """T: all rows."""
    supervised: int
    """R: rows where drafting can start."""
    pairs: int
    """Sum over sequences of supervised rows times length."""

    @classmethod
    def of(cls, tokens: int, length: int, share: float) -> Rows:
        """Equal sequences of `length` that make up `tokens`, or one where that is longer."""
        sequences = max(1, tokens // length)
        supervised = max(1, round(share * length))
        return cls(sequences * length, sequences * supervised, sequences * supervised * length)


def training(
    target: TargetShape,
    draft: DraftShape,
    train: TrainConfig,
    rows: Rows,
    *,
    sharded: int = 1,
    frozen_bytes: int = FLOAT32,
) -> Memory:
    """A training step whose features are given.

    Args:
        sharded: processes over which weights, gradients and moments are spread.
        frozen_bytes: of a number in the target's embedding and head.
    """
    weights = draft.parameters * FLOAT32
    gathered = weights if sharded > 1 else 0
    return Memory(
        frozen=frozen(target, draft, frozen_bytes),
        draft=weights // sharded + gathered,
        gradients=weights // sharded,
        optimizer=MOMENTS * weights // sharded,
        batch=rows.tokens * (4 * draft.hidden_size * FLOAT32 + 4 * 8),
        activations=activations(draft, train.ttt_steps, rows),
        loss=loss(draft, train.ttt_steps, rows),
    )


def frozen(target: TargetShape, draft: DraftShape, element_bytes: int) -> int:
    """Embedding and head of the target, and the head's rows inside the draft vocabulary."""
    whole = 2 * target.vocab_size * target.hidden_size
    return whole * element_bytes + draft.vocab_size * draft.hidden_size * FLOAT32


def activations(draft: DraftShape, steps: int, rows: Rows) -> int:
    """What the steps of `ttt.unroll` leave for backward."""
    h, i, q, n = draft.hidden_size, draft.intermediate_size, draft.query_width, draft.key_width
    # Step 0, all rows: fused, two normed inputs, their concatenation; keys and values.
    numbers = rows.tokens * (5 * h + 2 * n) + rows.supervised * 3 * h
    # Each step, supervised rows: inputs, query, attended, three norms, the MLP, the output.
    row = 4 * h + 2 * n + 2 * q + 4 * h + 4 * i + 3 * h
    numbers += steps * (rows.supervised * row + 2 * rows.pairs * draft.num_heads)
    return numbers * FLOAT32


def loss(draft: DraftShape, steps: int, rows: Rows) -> int:
    head = draft.vocab_size * draft.hidden_size
    labels = rows.supervised * draft.vocab_size
    return ((steps + 1) * head + labels) * FLOAT32


def reading(target: TargetShape, tokens: int, element_bytes: int) -> int:
    """A forward of the target over `tokens`: cache, the widest layer, captured features."""
    cache = target.cache_bytes(element_bytes)
    wide = 4 * target.intermediate_size + 6 * target.hidden_size + 4 * target.query_width
    return tokens * (cache + (wide + 4 * target.hidden_size) * element_bytes)
