"""EAGLE (Li et al. 2024a, arXiv 2401.15077): the next feature from the features before it.

A feature is the target's final hidden state, which its head turns into logits. The draft reads the
feature of row j beside the token x[j+1] and is taught the feature of row j+1 (smooth L1), and a
tenth of the cross-entropy of the target's own head on it. In training, noise on the features stands
for the errors of features that the draft made itself. Its tree is static.

Shapes: T rows of a batch, R rows where drafting can start, N rows that count, P positions with a
label, B sequences, F nodes that are expanded, J guesses that the draft has read, H hidden size, V
target vocabulary, Vd draft vocabulary (D in suffixes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eagle3.data.features import Sample
from eagle3.decode.attention import visible
from eagle3.decode.drafter import Seen
from eagle3.decode.tree import Shape, Tree
from eagle3.draft import DraftCache, DraftConfig, Layer, LayerDraft
from eagle3.drafters.eagle3 import Eagle3, Eagle3Session
from eagle3.drafters.guesses import acceptance
from eagle3.drafters.static import Layout
from eagle3.train.batch import Batch
from eagle3.train.labels import HeadLabels, Labels
from eagle3.train.loss import Rows, weighted_loss
from eagle3.train.objective import Supervised, weights
from eagle3.train.ttt import unroll

NOISE = 0.1
"""Half the width of the uniform noise on features in training."""
TOKEN_SHARE = 0.1
"""Weight of the cross-entropy beside the regression's 1."""


class Eagle(LayerDraft):
    """The draft, and how it learns.

    Args:
        config: sizes of its layer (`DraftConfig.for_target`).
        kept_D: ascending target ids of the draft vocabulary; the paper has no smaller one.
        head_VH: the target's LM head, which is the draft's too: frozen.
        softcap: of the target's logits.
        depth: tokens of the chains that it is judged by.
    """

    name = "eagle"
    steps = 1
    reads_hidden = True

    def __init__(
        self,
        config: DraftConfig,
        embed_VH: Tensor,
        kept_D: Tensor,
        head_VH: Tensor,
        softcap: float | None = None,
        depth: int = 4,
    ) -> None:
        h = config.hidden_size
        config = replace(config, draft_vocab_size=len(kept_D))
        super().__init__(config, embed_VH, nn.Linear(2 * h, h), Layer(config, h))
        self.set_vocab(kept_D)
        self.lm_head = nn.Linear(h, len(kept_D), bias=False).requires_grad_(False)
        self.lm_head.weight.copy_(head_VH[kept_D])
        self.softcap, self.depth = softcap, depth

    @property
    def module(self) -> Self:
        return self

    def fuse(self, features_TH: Tensor) -> Tensor:
        return features_TH

    def mix(self, ids_T: Tensor, feature_TH: Tensor) -> tuple[Tensor, Tensor]:
        x_TH: Tensor = self.fc(torch.cat([self.embed(ids_T), feature_TH], -1))
        return x_TH, x_TH

    def logits(self, out_TH: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(out_TH)
        return logits

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Over draft steps, the sum of the mean of the rows' losses."""
        part = Supervised.of(self, batch)
        weight_N = weights([part], self.steps, 1.0, "token")[0]
        features_TH = batch.hidden_TH
        if self.training:
            features_TH = features_TH + NOISE * (2 * torch.rand_like(features_TH) - 1)
        outs = unroll(self, batch, part.rows_R, self.steps, features_TH=features_TH, through=False)
        x_NH = torch.cat(list(outs))[part.step_N * len(part.rows_R) + part.row_N]
        true_NH = batch.hidden_TH[part.position_N]
        away_N = F.smooth_l1_loss(x_NH, true_NH, reduction="none").mean(-1)
        positions_P, index_N = torch.unique_consecutive(part.position_N, return_inverse=True)
        labels, share_P = self.labels(batch.hidden_TH[positions_P])
        rows = Rows(labels, index_N, part.step_N, (weight_N * share_P[index_N]).to(x_NH))
        tokens, _, choice_N = weighted_loss(x_NH, self.lm_head.weight, rows, "soft_ce")
        total = (away_N * weight_N.to(away_N)).sum() + tokens
        hit_N = self.target_ids(choice_N) == batch.argmax_T[part.position_N]
        metrics = {
            f"train/acc_step_{k}": float(hit_N[part.step_N == k].float().mean())
            for k in range(self.steps)
        }
        return total, {"train/loss": float(total.detach()), **metrics}

    def labels(self, hidden_PH: Tensor) -> tuple[Labels, Tensor]:
        """The distributions that are taught, and how much each one's cross-entropy counts, [P]."""
        share_P = hidden_PH.new_full((len(hidden_PH),), TOKEN_SHARE)
        return HeadLabels(hidden_PH, self.lm_head.weight, self.softcap), share_P

    def guesses(self, batch: Batch, rows_R: Tensor, depth: int, top: int) -> Tensor:
        outs = unroll(self, batch, rows_R, depth, features_TH=batch.hidden_TH)
        width = min(top, len(self.d2t))
        return torch.stack(
            [self.target_ids(self.logits(out_RH).topk(width, dim=-1).indices) for out_RH in outs]
        )

    def acceptance(self, samples: Sequence[Sample]) -> float:
        return acceptance(self, samples, self.depth).length


@dataclass(frozen=True)
class EagleDrafter:
    """EAGLE with a static tree; the paper's is of one shape for all targets, ours is measured
    (`static.best_layout`)."""

    draft: Eagle
    layout: Layout

    name = "eagle"
    capture_layers = None
    reads_hidden = True
    lossless = True

    @property
    def most_nodes(self) -> int:
        return len(self.layout.paths)

    def session(self, slots: int, capacity: int) -> EagleSession:
        return EagleSession(self, slots, capacity)


class HiddenSession(Eagle3Session):
    """EAGLE-3's session, on the target's final hidden state."""

    def features(self, rows: Seen) -> Tensor | None:
        return rows.hidden_RH


class EagleSession(HiddenSession):
    def __init__(self, drafter: EagleDrafter, slots: int, capacity: int) -> None:
        room = Shape(depth=1, top_k=max(1, drafter.most_nodes))  # rows that guesses take
        super().__init__(Eagle3(drafter.draft, room), slots, capacity)
        self.layout = drafter.layout

    def trees(self, root_out_BH: Tensor, room_B: Sequence[int]) -> list[Tree]:
        tokens = grow(self.draft, root_out_BH, self.cache, self.layout, max(room_B)).tolist()
        return [
            self.layout.tree(row[1 : 1 + self.layout.nodes(room)])
            for row, room in zip(tokens, room_B, strict=True)
        ]


@torch.inference_mode()
def grow(
    draft: LayerDraft, root_out_BH: Tensor, cache: DraftCache, layout: Layout, depth: int
) -> Tensor:
    """Tokens of a static tree's nodes down to `depth`, [B, 1 + N]; the root's place is empty.

    Rows of the draft's own guesses are written after the cache's and rolled back at the end.
    """
    starts = list(cache.lengths)
    start_B1 = torch.tensor(starts, device=root_out_BH.device)[:, None]
    tokens_BN = torch.zeros(
        len(starts), 1 + layout.nodes(depth), dtype=torch.int64, device=root_out_BH.device
    )
    outs_BFH = root_out_BH[:, None]
    for k, level in enumerate(layout.levels[:depth]):
        if k:
            nodes = layout.expanded[k]
            outs_BFH = draft(
                tokens_BN[:, nodes],
                outs_BFH[:, layout.sources[k - 1]],
                (start_B1 + k - 1).expand(-1, len(nodes)),
                cache,
                visible(layout.seen[k - 1].to(outs_BFH.device), starts),
            )
            cache.advance(len(nodes))
        ids_BFI = draft.logits(outs_BFH).topk(layout.width, dim=-1).indices
        tokens_BN[:, level] = draft.target_ids(ids_BFI)[:, layout.places[k], layout.ranks[k]]
    cache.rollback(*starts)
    return tokens_BN
