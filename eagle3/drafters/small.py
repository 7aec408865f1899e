"""The small model of speculative sampling: made for a target, trained on its answers, saved.

A Llama of a few layers with the target's tokenizer. Its embedding is the target's, frozen; its head
starts as the target's, its layers at random. It learns the target's whole distribution at each
place of an answer where drafting can stand (distillation, cross-entropy with soft labels). On disk
it is a plain HF directory.

Shapes: T rows of a batch, R rows where drafting can start, K depths, I guesses of each, H hidden
size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from eagle3.data.features import Sample
from eagle3.draft import DraftConfig
from eagle3.drafters.guesses import acceptance
from eagle3.drafters.sps import Speculative
from eagle3.errors import BadInput
from eagle3.load import load_model
from eagle3.target import Target, load_tokenizer
from eagle3.train.batch import Batch
from eagle3.train.labels import Teacher
from eagle3.train.loss import ROWS, Rows, weighted_loss
from eagle3.train.start import HEAD_SCALE


class SmallModel:
    """A small Llama that learns to say what the target says.

    Args:
        layers: decoder layers, each of the target's sizes.
        depth: tokens of the chains that it is judged by.
    """

    name = "sps"
    steps = 1
    reads_hidden = False

    def __init__(self, target: Target, layers: int = 2, depth: int = 4) -> None:
        self.teacher = Teacher(
            target.head_weight().detach(),
            target.softcap,
            torch.ones(target.vocab_size, dtype=torch.bool, device=target.device),
        )
        self.module = _new_llama(target, layers)
        self.depth = depth

    @property
    def embed_VH(self) -> Tensor:
        return self.module.get_input_embeddings().weight

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """Mean cross-entropy with the target's distribution."""
        positions_P = batch.supervised_ST[0].nonzero()[:, 0] + 1
        x_PH = self._hidden(batch)[positions_P]
        each_P = torch.arange(len(positions_P), device=x_PH.device)
        rows = Rows(
            self.teacher.labels(batch, positions_P),
            each_P,
            torch.zeros_like(each_P),
            torch.full_like(each_P, 1 / len(each_P), dtype=torch.float32),
        )
        loss, _, choice_P = weighted_loss(x_PH, self.module.lm_head.weight, rows, "soft_ce")
        hits_P = choice_P == batch.argmax_T[positions_P]
        return loss, {
            "train/loss": float(loss.detach()),
            "train/acc_step_0": float(hits_P.float().mean()),
        }

    def guesses(self, batch: Batch, rows_R: Tensor, depth: int, top: int) -> Tensor:
        """As of `guesses.Guesser`: what it says at row j+1+k is its guess for x[j+2+k]."""
        ahead_K1 = torch.arange(1, depth + 1, device=rows_R.device)[:, None]
        read_KR = (rows_R + ahead_K1).clamp(max=len(batch.ids_T) - 1)
        rows_U, place_KR = torch.unique(read_KR, return_inverse=True)
        hidden_UH, head = self._hidden(batch)[rows_U], self.module.lm_head
        ids_UI = torch.cat([head(x).topk(top, dim=-1).indices for x in hidden_UH.split(ROWS)])
        return ids_UI[place_KR]

    def acceptance(self, samples: Sequence[Sample]) -> float:
        return acceptance(self, samples, self.depth).length

    def _hidden(self, batch: Batch) -> Tensor:
        """The final normed hidden state of each row, [T, H]; every sequence by itself."""
        body = self.module.get_decoder()
        outs = [
            body(input_ids=ids_L[None], use_cache=False).last_hidden_state[0]
            for ids_L in batch.ids_T.split(batch.lengths)
        ]
        return torch.cat(outs)


@torch.no_grad()
def _new_llama(target: Target, layers: int) -> Any:
    """A small model on the target's device, in float32; the same seed gives the same weights."""
    sizes = DraftConfig.for_target(target.config, target.capture_layers, target.vocab_size)
    config = sizes.llama()
    config.num_hidden_layers = layers
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(config, name, getattr(sizes, name))
    model: Any = LlamaForCausalLM(config).float().to(target.device)
    model.model.embed_tokens.weight.copy_(target.embed.weight)
    model.model.embed_tokens.requires_grad_(False)
    model.lm_head.weight.copy_(target.head_weight())
    model.model.norm.weight.fill_(HEAD_SCALE)  # a nearly flat guess, as a draft starts
    return model


def save(model: nn.Module, folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write a whole HF directory: weights (safetensors), config and tokenizer."""
    out: Any = model
    out.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def load(
    folder: Path | str,
    target: Target,
    tokenizer: PreTrainedTokenizerBase,
    length: int = 4,
    dtype: torch.dtype | None = None,
) -> Speculative:
    """Any causal LM of an HF directory as a drafter of this target, on its device and in its type.

    Args:
        tokenizer: the target's.

    Raises:
        BadInput: its tokenizer is another one.
    """
    own, its = tokenizer.get_vocab(), load_tokenizer(folder).get_vocab()
    if own != its:
        apart = len(set(own.items()) ^ set(its.items()))
        raise BadInput(
            f"the small model in {folder} has another tokenizer than the target ({apart} entries "
            "differ), and guesses are token ids",
            "use a model of the target's family, or train one: eagle3.drafters.small",
        )
    model, _ = load_model(folder, dtype or target.dtype, str(target.device))
    return Speculative.of(model, target.vocab_size, length)
