"""The baseline of `training_step.py`: training-time test as its public implementations write it.

    every row      all L rows go through every draft step, supervised or not
    attention      at step k one call of torch's scaled_dot_product_attention, every query against
                   the keys of all steps so far, under a mask of L x L(k + 1): causal over the keys
                   of step 0, the diagonal over those of each later step
    loss           the draft's logits of all rows, [L, Vd], at every step; cross-entropy with the
                   target's probabilities, [L, Vd] too; the mean over the rows that count
    gradients      autograd's, through all of it

What a careful author of such code would do is done: the mask is made once, before the clock runs,
in the additive form that saves a conversion in each call; grouped heads are not repeated; the
target's probabilities are made once an optimiser step, over the draft vocabulary alone; rows beyond
the sequence's end are cut off, not padded; the cross-entropy is the fastest of four ways to write
it in torch, and the one that keeps least. The network is the module that the product trains
(`eagle3.draft`), with the norm and the activation of transformers in place of its own (`stock`).

Shapes: L rows of one sequence, S draft steps, H hidden size, Vd draft vocabulary (D in suffixes), N
key/value heads, d head_dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from eagle3.draft import MLP, Draft
from eagle3.lean import RMSNorm
from eagle3.train.batch import Batch


def stock(draft: Draft) -> None:
    """Put the common norm and activation in the place of those that keep less; weights stay."""
    for module in list(draft.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, RMSNorm):
                norm = LlamaRMSNorm(len(child.weight), child.eps).to(child.weight.device)
                norm.weight = child.weight
                setattr(module, name, norm)
            elif isinstance(child, MLP):
                child.silu, child.act = False, nn.SiLU()


def step_mask(length: int, steps: int, dtype: torch.dtype) -> Tensor:
    """What row j may see, as an additive mask [L, LS]; step k uses the first L(k + 1) columns."""
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    own = torch.eye(length, dtype=torch.bool)
    seen = torch.cat([causal, *[own] * (steps - 1)], dim=1)
    return torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))


def plain_loss(draft: Draft, head_DH: Tensor, batch: Batch, decay: float, mask: Tensor) -> Tensor:
    """The loss of one sequence.

    Args:
        head_DH: the target's LM head, its rows inside the draft vocabulary.
        mask: of `step_mask`.
    """
    if len(batch.lengths) != 1:
        raise ValueError(f"the baseline takes one sequence, not {len(batch.lengths)}")
    length = len(batch.ids_T)
    with torch.no_grad():
        logits = batch.hidden_TH @ head_DH.T
        exact = torch.promote_types(logits.dtype, torch.float32)
        target_LD = logits.softmax(-1, dtype=exact)
        inside_L = draft.t2d[batch.argmax_T.clamp(min=0)]
    feature_LH = draft.fuse(batch.features_T3H)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    losses: list[Tensor] = []
    for k, supervised_L in enumerate(batch.supervised_ST):
        ids_L = batch.ids_T.roll(-1 - k)  # the last rows are supervised at no step
        position_L = batch.positions_T + k
        mixed_L = draft.midlayer.mix(draft.embed(ids_L), feature_LH)
        key_LNd, value_LNd = draft.key_value(mixed_L, position_L)
        keys.append(key_LNd)
        values.append(value_LNd)
        attended = F.scaled_dot_product_attention(
            draft.query(mixed_L, position_L).transpose(0, 1)[None],
            torch.cat(keys).transpose(0, 1)[None],
            torch.cat(values).transpose(0, 1)[None],
            attn_mask=mask[:, : length * (k + 1)],
            scale=draft.scaling,
            enable_gqa=True,
        )
        feature_LH = draft.midlayer.finish(feature_LH, attended[0].transpose(0, 1))
        rows = length - 1 - k  # row j's label is the target's distribution at j + 1 + k
        logits = draft.logits(feature_LH)[:rows]
        log_q = logits.log_softmax(-1, dtype=exact)
        with torch.autocast(logits.device.type, enabled=False):
            loss_L = -torch.einsum("lv,lv->l", target_LD[1 + k :], log_q)
        counts_L = (supervised_L[:rows] & inside_L[1 + k :]).to(loss_L)
        losses.append(decay**k * (loss_L * counts_L).sum() / counts_L.sum())
    return torch.stack(losses).sum()
