"""What both training steps of `training_step.py` get: one draft, one sequence, one optimiser.

Features, hidden states and weights are random: a step's time and memory do not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from benchmarks.plain_training import plain_loss, step_mask, stock
from eagle3.data.features import Sample
from eagle3.draft import Draft, DraftConfig
from eagle3.train.batch import Batch, pack
from eagle3.train.labels import Teacher
from eagle3.train.objective import objective
from eagle3.train.precision import Precision

Method = Literal["ours", "plain"]
Rows = Literal["every", "answers"]

DECAY, CLIP, LEARNING_RATE, BETAS = 0.8, 0.5, 1e-4, (0.9, 0.95)
"""As published; none of them changes what a step costs."""

TURN, ANSWER = 256, 155
"""Tokens of a turn of `answers` rows, and of its answer: 154 rows of 256 supervised, 0.60. A
`standard` run of the demo target has 0.67 answer tokens (docs/experiments.md), and one row an
answer less that is supervised."""


@dataclass(frozen=True)
class Case:
    """Shapes of SmolLM2-135M where nothing else is asked for."""

    length: int = 2048
    hidden: int = 576
    intermediate: int = 1536
    heads: int = 9
    groups: int = 3
    head_dim: int = 64
    draft_vocab: int = 32_000
    steps: int = 7
    rows: Rows = "every"
    precision: Precision = "float32"
    device: str = "cpu"

    def spans(self) -> list[tuple[int, int]]:
        """Answers, as half-open ranges of tokens."""
        if self.rows == "every":
            return [(1, self.length)]
        starts = range(TURN - ANSWER, self.length, TURN)
        return [(start, min(start + ANSWER, self.length)) for start in starts]

    def draft(self) -> Draft:
        """Its draft vocabulary is the whole of the target's, or as much as SmolLM2's has."""
        vocab = max(self.draft_vocab, 49_152 if self.hidden == 576 else 0)
        config = DraftConfig(
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_attention_heads=self.heads,
            num_key_value_heads=self.groups,
            head_dim=self.head_dim,
            vocab_size=vocab,
            rms_norm_eps=1e-5,
            hidden_act="silu",
            rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
            max_position_embeddings=max(8192, self.length + self.steps),
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            draft_vocab_size=self.draft_vocab,
            capture_layers=(2, 15, 27),
        )
        draft = Draft(config, torch.randn(vocab, self.hidden)).to(self.device)
        draft.set_vocab(torch.arange(self.draft_vocab))
        return draft

    def batch(self) -> Batch:
        sample = Sample(
            id="random",
            split="train",
            input_ids=torch.randint(0, self.draft_vocab, (self.length,)),
            features=torch.randn(self.length, 3 * self.hidden),
            hidden=torch.randn(self.length, self.hidden),
            argmax=torch.randint(0, self.draft_vocab, (self.length,)),
            lse=torch.zeros(self.length),
            spans=self.spans(),
        )
        return pack([sample], self.steps, device=self.device)


class Step:
    """One optimiser step of a method, over and over: loss, gradients, clipping, AdamW."""

    def __init__(self, case: Case, method: Method) -> None:
        torch.manual_seed(0)
        self.case = case
        self.draft, self.batch = case.draft(), case.batch()
        head_DH = torch.randn(case.draft_vocab, case.hidden, device=case.device)
        head_DH *= case.hidden**-0.5
        self._loss = self._method(method, head_DH)
        self.optimizer = torch.optim.AdamW(
            self.draft.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0
        )

    def _method(self, method: Method, head_DH: Tensor) -> Callable[[], Tensor]:
        if method == "ours":
            teacher = Teacher(head_DH)
            return lambda: objective(self.draft, teacher, self.batch, DECAY).loss
        stock(self.draft)
        dtype = getattr(torch, self.case.precision)
        mask = step_mask(self.case.length, self.case.steps, dtype).to(self.case.device)
        return lambda: plain_loss(self.draft, head_DH, self.batch, DECAY, mask)

    def __call__(self) -> float:
        """Returns the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        lower = self.case.precision == "bfloat16"
        with torch.autocast(self.case.device, torch.bfloat16, enabled=lower):
            loss = self._loss()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self.draft.parameters(), CLIP)
        self.optimizer.step()
        return float(loss.detach())

    def begin(self) -> None:
        """Make AdamW's moments, which the first step would make; no weight changes."""
        for parameter in self.draft.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @property
    def supervised(self) -> list[float]:
        """The share of the rows that count at each draft step."""
        return [float(share) for share in self.batch.supervised_ST.float().mean(1)]
