"""Draft heads on the target's final hidden state: what Medusa and Hydra share.

Head k guesses the token x[j+2+k] from the hidden state of row j; the root x[j+1] is known by then.
Each head has an output layer of its own over the draft vocabulary, which starts as the target's,
turned down: as it is, it would guess the root again and be sure of it. In the papers it is not
turned down, and the vocabulary is the target's whole one.

Shapes: T rows of a batch, R rows where drafting can start, B sequences, P nodes whose children are
drafted, N nodes of a tree, H hidden size, V target vocabulary, Vd draft vocabulary (D in suffixes).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from eagle3.data.features import Sample
from eagle3.data.topk import TopK
from eagle3.decode.drafter import Proposal, Seen
from eagle3.decode.sampling import Sampling
from eagle3.decode.verify import Typical
from eagle3.draft import Vocabulary
from eagle3.drafters.guesses import acceptance
from eagle3.drafters.static import Layout
from eagle3.train.batch import Batch
from eagle3.train.labels import TopKLabels
from eagle3.train.loss import Rows, weighted_loss
from eagle3.train.objective import Supervised, weights
from eagle3.train.start import HEAD_SCALE


class DraftHeads(Vocabulary, ABC):
    """The heads, and how they learn. `embed_VH` is the target's: frozen, shared, never saved.

    Args:
        kept_D: ascending target ids of the draft vocabulary.
        head_VH: the target's LM head, where the output layers start.
        heads: tokens after the root that are guessed.
        layers: blocks of a head.
    """

    name: ClassVar[str]
    sequential: ClassVar[bool]
    """Whether a head reads the tokens that were drafted before its own."""
    decay: ClassVar[float]
    """Head k's loss counts decay ** k."""
    reads_hidden = True

    def __init__(
        self, embed_VH: Tensor, kept_D: Tensor, head_VH: Tensor, heads: int = 4, layers: int = 1
    ) -> None:
        super().__init__(len(embed_VH), len(kept_D))
        self.set_vocab(kept_D)
        self.embed_VH = embed_VH
        size = head_VH.shape[1]
        self.states = nn.ModuleList([self.blocks(k, size, layers) for k in range(heads)])
        outputs = [nn.Linear(size, len(kept_D), bias=False) for _ in range(heads)]
        for output in outputs:
            output.weight.data.copy_(HEAD_SCALE * head_VH[kept_D])
        self.heads = nn.ModuleList(outputs)

    @property
    def module(self) -> Self:
        return self

    @property
    def steps(self) -> int:
        return len(self.heads)

    @staticmethod
    @abstractmethod
    def blocks(k: int, hidden_size: int, layers: int) -> nn.Module:
        """Head k below its output layer."""

    @abstractmethod
    def state(self, k: int, hidden_RH: Tensor, tokens: Sequence[Tensor]) -> Tensor:
        """What head k's output layer reads, [R, H].

        Args:
            tokens: the root and the k tokens after it, [R] each.
        """

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Sum over heads of decay^k times the mean cross-entropy with the answer's own token."""
        part = Supervised.of(self, batch)
        weight_N = weights([part], self.steps, self.decay, "token")[0]
        total, metrics = batch.hidden_TH.new_zeros(()), {}
        for k in range(self.steps):
            head_DH: Any = self.heads[k].weight
            here_N = (part.step_N == k).nonzero()[:, 0]
            if len(here_N) == 0:
                continue
            rows_R, position_R = part.rows_R[part.row_N[here_N]], part.position_N[here_N]
            tokens = [batch.ids_T[rows_R + 1 + i] for i in range(k + 1)]
            x_RH = self.state(k, batch.hidden_TH[rows_R], tokens)
            positions_P, index_R = torch.unique_consecutive(position_R, return_inverse=True)
            said_P1 = batch.argmax_T[positions_P][:, None]
            sure = TopK(said_P1, torch.ones_like(said_P1, dtype=batch.hidden_TH.dtype))
            labels = TopKLabels(sure, self.t2d, len(head_DH))
            rows = Rows(labels, index_R, torch.zeros_like(index_R), weight_N[here_N].to(x_RH))
            loss, _, choice_R = weighted_loss(x_RH, head_DH, rows, "soft_ce")
            total = total + loss
            hit_R = self.target_ids(choice_R) == batch.argmax_T[position_R]
            metrics[f"train/acc_step_{k}"] = float(hit_R.float().mean())
        return total, {"train/loss": float(total.detach()), **metrics}

    def guesses(self, batch: Batch, rows_R: Tensor, depth: int, top: int) -> Tensor:
        last = len(batch.ids_T) - 1
        found = []
        for k in range(depth):
            tokens = [batch.ids_T[(rows_R + 1 + i).clamp(max=last)] for i in range(k + 1)]
            found.append(self.likeliest(k, batch.hidden_TH[rows_R], tokens, top))
        return torch.stack(found)

    def acceptance(self, samples: Sequence[Sample]) -> float:
        return acceptance(self, samples, self.steps).length

    def likeliest(self, k: int, hidden_RH: Tensor, tokens: Sequence[Tensor], top: int) -> Tensor:
        """The `top` likeliest target ids of head k, [R, top]."""
        logits_RD = self.heads[k](self.state(k, hidden_RH, tokens))
        return self.target_ids(logits_RD.topk(min(top, logits_RD.shape[1]), dim=-1).indices)

    @torch.inference_mode()
    def grow(self, hidden_BH: Tensor, roots_B: Tensor, layout: Layout, depth: int) -> Tensor:
        """Tokens [B, 1 + N] of the layout's nodes down to `depth`, the root first."""
        tokens_BN = roots_B.new_zeros(len(roots_B), 1 + layout.nodes(depth))
        tokens_BN[:, 0] = roots_B
        for k, level in enumerate(layout.levels[:depth]):
            parents = layout.expanded[k] if self.sequential else [0]
            lines_PA = torch.tensor([layout.lines[parent] for parent in parents])
            ids_BPI = self.likeliest(
                k,
                hidden_BH.repeat_interleave(len(parents), 0),
                tokens_BN[:, lines_PA].flatten(0, 1).unbind(-1),
                layout.width,
            ).unflatten(0, (len(roots_B), len(parents)))
            places = layout.places[k] if self.sequential else 0
            tokens_BN[:, level] = ids_BPI[:, places, layout.ranks[k]]
        return tokens_BN


@dataclass(frozen=True)
class HeadDrafter:
    """Draft heads with a tree of this shape."""

    heads: DraftHeads
    layout: Layout
    typical: Typical | None = None
    """Accept by this rule, which is lossy, in place of the exact one."""

    capture_layers = None
    reads_hidden = True

    @property
    def name(self) -> str:
        return self.heads.name if self.lossless else f"{self.heads.name}_typical"

    @property
    def lossless(self) -> bool:
        return self.typical is None

    @property
    def most_nodes(self) -> int:
        return len(self.layout.paths)

    def session(self, slots: int, capacity: int) -> HeadSession:
        return HeadSession(self.heads, self.layout, self.typical)


class HeadSession:
    """Of each sequence, the hidden state of its last row and the root that follows it."""

    def __init__(self, heads: DraftHeads, layout: Layout, typical: Typical | None = None) -> None:
        self.heads, self.layout, self.typical = heads, layout, typical
        self.last: dict[int, tuple[Tensor, int]] = {}

    def open(
        self, slot: int, prompt_ids: Sequence[int], sampling: Sampling, generator: torch.Generator
    ) -> None:
        assert slot not in self.last, f"slot {slot} is taken"

    def propose(self, room: Mapping[int, int]) -> dict[int, Proposal]:
        layout = self.layout
        depth = min(layout.depth, max(room.values(), default=0))
        if depth == 0:
            return {slot: Proposal(layout.tree([])) for slot in room}
        hidden_BH = torch.stack([self.last[slot][0] for slot in room])
        roots_B = torch.tensor([self.last[slot][1] for slot in room], device=hidden_BH.device)
        tokens = self.heads.grow(hidden_BH, roots_B, layout, depth)[:, 1:].tolist()
        return {
            slot: Proposal(layout.tree(row[: layout.nodes(deep)]), typical=self.typical)
            for row, (slot, deep) in zip(tokens, room.items(), strict=True)
        }

    def observe(self, seen: Mapping[int, Seen]) -> None:
        for slot, rows in seen.items():
            assert rows.hidden_RH is not None
            self.last[slot] = rows.hidden_RH[-1], rows.next_ids[-1]

    def close(self, slot: int) -> None:
        self.last.pop(slot, None)
