"""A target and drafts whose acceptance is known in advance, built by hand, no training.

The target's layers are identities and its head maps token t to `perm[t]`. The draft's attention
looks at its own row only (queries and keys read the embedding half), its values cancel the feature
it was fed and put the token's embedding in its place, so its output is the embedding of its input
token at every depth, and its head maps that to whatever `guess` says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3.draft import Draft, DraftConfig
from eagle3.target import Target

HIDDEN = 64
HEADS = 2
LAYERS = 3
CAPTURE = (0, 1, 2)


@dataclass(frozen=True)
class Golden:
    target: Target
    perm: list[int]
    """The target's most likely successor of each token; one cycle through the vocabulary."""

    def chain(self, token: int, count: int) -> list[int]:
        """The `count` tokens that greedily follow `token`."""
        out = []
        for _ in range(count):
            token = self.perm[token]
            out.append(token)
        return out


def golden_target(vocab: int = 48, certainty: float = 20.0, seed: int = 0) -> Golden:
    """Logits are `certainty` for the successor and 0 for every other token."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(vocab, generator=generator)
    perm = torch.empty(vocab, dtype=torch.int64)
    perm[order] = order.roll(-1)
    model = LlamaForCausalLM(_llama(vocab)).float()
    embed_VH = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN, generator=generator))[0][:vocab]
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(embed_VH)
        model.lm_head.weight[perm] = embed_VH * certainty / math.sqrt(HIDDEN)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return Golden(Target(model, CAPTURE), perm.tolist())


def random_target(vocab: int = 48, seed: int = 0) -> Target:
    """A target whose next token depends on the whole context."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(_llama(vocab)).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.2)
    return Target(model, CAPTURE)


def golden_draft(target: Target, guess: Tensor, kept: Tensor | None = None) -> Draft:
    """A draft whose logits after token t are 10 * guess[t].

    Args:
        guess: [V, V]; row t scores the successors of token t.
        kept: ascending target ids of the draft vocabulary; all when empty.
    """
    embed_VH = target.embed.weight.detach()
    vocab = len(embed_VH)
    kept = torch.arange(vocab) if kept is None else kept
    draft = Draft(DraftConfig.for_target(target.config, CAPTURE, len(kept)), embed_VH)
    draft.set_vocab(kept)
    eye, zero = torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)
    attn = draft.midlayer.self_attn
    with torch.no_grad():
        draft.fc.weight.copy_(torch.cat([eye, eye, eye], 1) / 3)
        attn.q_proj.weight.copy_(torch.cat([4 * eye, zero], 1))
        attn.k_proj.weight.copy_(torch.cat([4 * eye, zero], 1))
        attn.v_proj.weight.copy_(torch.cat([eye, -eye], 1))
        attn.o_proj.weight.copy_(eye / math.sqrt(HIDDEN))
        draft.midlayer.mlp.down_proj.weight.zero_()
        draft.lm_head.weight.copy_(10 / math.sqrt(HIDDEN) * guess[:, kept].T @ embed_VH)
    return draft.eval().requires_grad_(False)


def successor_scores(perm: list[int], shift: int = 0) -> Tensor:
    """Scores [V, V] that name the token `shift` steps past the right successor."""
    vocab = len(perm)
    scores = torch.zeros(vocab, vocab)
    for token in range(vocab):
        named = perm[token]
        for _ in range(shift):
            named = perm[named]
        scores[token, named] = 1.0
    return scores


def _llama(vocab: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=HIDDEN,
        intermediate_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
