"""Memory of a training step and of reading the target, by what takes it.

A ledger of the tensors of `eagle3.train` that exist at the peak of a step. A test holds the sum
within 15% of what real steps take.
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
LOSS_ROWS = 512
LOSS_LOGITS = 2**24
"""Rows, and logits, of one chunk of `eagle3.train.loss` (a test compares them)."""


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
    """What the loss, or the backward pass of the attention, takes for a moment."""
    overhead: int = 0
    """The runtime, and what the allocator holds without need."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in type(self).model_fields)


@dataclass(frozen=True)
class Rows:
    """The rows of one backward pass on one process: equal sequences."""

    sequences: int
    length: int
    supervised: int
    """Rows of a sequence where drafting can start."""

    @classmethod
    def of(cls, tokens: int, length: int, share: float) -> Rows:
        """Sequences of `length` that make up `tokens`, or one where that is longer."""
        return cls(max(1, tokens // length), length, max(1, round(share * length)))

    @property
    def tokens(self) -> int:
        return self.sequences * self.length

    @property
    def starts(self) -> int:
        return self.sequences * self.supervised


def training(
    target: TargetShape,
    draft: DraftShape,
    train: TrainConfig,
    rows: Rows,
    *,
    product_bytes: int = FLOAT32,
    sharded: int = 1,
    frozen_bytes: int = FLOAT32,
    accumulated: bool = False,
) -> Memory:
    """A training step whose features are given, at the moment when it takes most.

    Args:
        product_bytes: of a number that products are computed in (`train.precision`).
        sharded: processes over which weights, gradients and moments are spread.
        frozen_bytes: of a number in the target's embedding and head.
        accumulated: gradients of an earlier backward pass are there already.
    """
    weights = draft.parameters * FLOAT32
    part, largest_part = weights // sharded, largest(draft) // sharded
    base = Memory(
        frozen=frozen(target, draft, frozen_bytes),
        draft=part + (weights if sharded > 1 else 0),
        optimizer=MOMENTS * part,
        # As stored, in bfloat16, and as training computes with it.
        batch=rows.tokens * 4 * draft.hidden_size * (BFLOAT16 + FLOAT32),
    )
    half = product_bytes != FLOAT32
    earlier = weights if accumulated else 0
    kept, step = kept_for_backward(draft, train.ttt_steps, rows, product_bytes, train.recompute)
    head = draft.vocab_size * draft.hidden_size * FLOAT32
    outputs = train.ttt_steps * rows.starts * draft.hidden_size * FLOAT32
    moments = (
        # The loss: outputs of the steps as rows of their own, normed, and their gradient; weights
        # once more, where products are in another type.
        {
            "draft": base.draft + (draft.parameters * product_bytes if half else 0),
            "activations": kept + 3 * outputs,
            "gradients": earlier + head,
            "loss": logits(draft, train.ttt_steps, rows),
        },
        # Backward begins, with the norm before the head: rows, normed, two gradients and a product.
        {"activations": kept + 5 * outputs, "gradients": earlier + head},
        # The last step, made again where it was not kept.
        {"activations": kept + 2 * outputs + step, "gradients": earlier + head},
        # Spread: gradients of all weights, before a process cuts out its part of them.
        {"gradients": weights + (largest_part if sharded > 1 else 0)},
        # The update, a parameter at a time.
        {"draft": part, "gradients": part, "optimizer": base.optimizer + 2 * largest_part},
    )
    return max((base.model_copy(update=m) for m in moments), key=lambda found: found.total)


def frozen(target: TargetShape, draft: DraftShape, element_bytes: int) -> int:
    """Embedding and head of the target, and the head's rows inside the draft vocabulary."""
    whole = (1 if target.tied else 2) * target.vocab_size * target.hidden_size
    return whole * element_bytes + draft.vocab_size * draft.hidden_size * FLOAT32


def kept_for_backward(
    draft: DraftShape, steps: int, rows: Rows, product_bytes: int, recompute: bool
) -> tuple[int, int]:
    """Bytes that the steps of `train.ttt.unroll` leave for the backward pass, and those of one step
    that comes back in it: 0 unless steps are made again."""
    h, i, q, n = draft.hidden_size, draft.intermediate_size, draft.query_width, draft.key_width
    # Step 0, all rows: the fused feature, the embedding, both normed side by side; keys and values.
    first = rows.tokens * (4 * h * FLOAT32 + 2 * n * product_bytes)
    first += rows.starts * h * FLOAT32
    # Each step, rows where drafting can start: the embedding, both inputs normed side by side, the
    # sum, normed, and the output; query, attended, keys and values; the MLP's two products and
    # what goes down. Inputs of products are cast for each, which evens out.
    each = 6 * h * FLOAT32 + (2 * q + 2 * n + 3 * i) * product_bytes
    if not recompute:
        return first + steps * rows.starts * each, 0
    inputs = h * FLOAT32 + 2 * n * product_bytes
    return first + steps * rows.starts * inputs, rows.starts * each


def logits(draft: DraftShape, steps: int, rows: Rows) -> int:
    """Bytes of the logits that `train.loss` holds at one time.

    Of a chunk: the draft's, the labels of its positions and of its rows, and a product. Those of
    the chunk before and its labels go when the next one's are made.
    """
    columns = min(draft.vocab_size, LOSS_LOGITS // LOSS_ROWS)
    total = steps * rows.starts
    whole, second = min(total, LOSS_ROWS), min(max(0, total - LOSS_ROWS), LOSS_ROWS)
    a_row = 3 + 1 / steps
    return round(max(a_row * whole, 2 * whole + a_row * second) * columns * FLOAT32)


def largest(draft: DraftShape) -> int:
    """Bytes of the largest weight."""
    widths = (draft.vocab_size, 3 * draft.hidden_size, draft.intermediate_size, draft.query_width)
    return max(widths) * draft.hidden_size * FLOAT32


def reading(target: TargetShape, tokens: int, element_bytes: int) -> int:
    """A forward of the target over `tokens`: cache, the widest layer, captured features."""
    cache = target.cache_bytes(element_bytes)
    wide = 4 * target.intermediate_size + 6 * target.hidden_size + 4 * target.query_width
    return tokens * (cache + (wide + 4 * target.hidden_size) * element_bytes)
