"""The EAGLE-3 draft: fused target features and a token in, the next token's distribution out.

Shapes: T rows of one sequence, H hidden size, V target vocabulary, Vd draft vocabulary, Q query
heads, N key/value heads, D head_dim, K keys. Names and layout are those that serving engines load
(EAGLE-3 paper, section 3.1, and its public code).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, rotate_half

from eagle3 import fit, vocab
from eagle3.decode.attention import additive, causal_mask, grouped_attention
from eagle3.decode.cache import RollbackCache
from eagle3.lean import RMSNorm, swiglu


@dataclass(frozen=True, kw_only=True)
class DraftConfig:
    """Sizes of the draft; all but the last two follow from the target."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    hidden_act: str
    rope_parameters: dict[str, Any]
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    pad_token_id: int | None
    draft_vocab_size: int
    capture_layers: tuple[int, int, int]

    @classmethod
    def for_target(
        cls,
        config: Any,
        capture_layers: tuple[int, int, int],
        draft_vocab_size: int,
        intermediate_size: int | None = None,
    ) -> Self:
        """The draft that fits a target's text config (`eagle3.fit`)."""
        queries, groups, head_dim = fit.heads(config)
        return cls(
            hidden_size=config.hidden_size,
            intermediate_size=intermediate_size or fit.mlp_width(config),
            num_attention_heads=queries,
            num_key_value_heads=groups,
            head_dim=head_dim,
            vocab_size=config.vocab_size,
            rms_norm_eps=fit.norm_eps(config),
            hidden_act="silu",
            rope_parameters=fit.rope(config),
            max_position_embeddings=fit.context_length(config),
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            pad_token_id=config.pad_token_id,
            draft_vocab_size=min(draft_vocab_size, config.vocab_size),
            capture_layers=capture_layers,
        )

    def llama(self) -> LlamaConfig:
        """The one decoder layer as transformers knows it; carries the target's RoPE."""
        return LlamaConfig(
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            num_hidden_layers=1,
            vocab_size=self.vocab_size,
            rms_norm_eps=self.rms_norm_eps,
            hidden_act=self.hidden_act,
            rope_parameters=dict(self.rope_parameters),
            max_position_embeddings=self.max_position_embeddings,
            tie_word_embeddings=False,
        )


class DraftCache(RollbackCache):
    """K and V of the draft's one layer."""

    def __init__(self, capacity: int, batch: int = 1, in_use: bool = True) -> None:
        super().__init__(1, batch, capacity, in_use)


class Attention(nn.Module):
    def __init__(self, c: DraftConfig, width: int) -> None:
        super().__init__()
        q, n = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        self.head_dim = c.head_dim
        self.q_proj = nn.Linear(width, q, bias=False)
        self.k_proj = nn.Linear(width, n, bias=False)
        self.v_proj = nn.Linear(width, n, bias=False)
        self.o_proj = nn.Linear(q, c.hidden_size, bias=False)


class MLP(nn.Module):
    def __init__(self, c: DraftConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)
        self.act = ACT2FN[c.hidden_act]
        self.silu = c.hidden_act == "silu"

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_proj(x), self.up_proj(x)
        inner = swiglu(gate, up) if self.silu else self.act(gate) * up
        out: Tensor = self.down_proj(inner)
        return out


class Layer(nn.Module):
    """Attention over an input of any width, and an MLP.

    The input is not the residual stream: that is what `finish` is given.
    """

    def __init__(self, c: DraftConfig, width: int) -> None:
        super().__init__()
        self.self_attn = Attention(c, width)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = MLP(c)

    def finish(self, residual_TH: Tensor, attended_TQD: Tensor) -> Tensor:
        """The layer's output before any final norm."""
        x_TH = residual_TH + self.self_attn.o_proj(attended_TQD.flatten(-2))
        out: Tensor = x_TH + self.mlp(self.post_attention_layernorm(x_TH))
        return out


class Midlayer(Layer):
    """One decoder layer whose attention reads embedding and feature side by side (2H wide)."""

    def __init__(self, c: DraftConfig) -> None:
        super().__init__(c, 2 * c.hidden_size)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.hidden_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def mix(self, embedding_TH: Tensor, feature_TH: Tensor) -> Tensor:
        """Attention's input, [T, 2H]: the normed embedding first, then the normed feature."""
        return torch.cat([self.input_layernorm(embedding_TH), self.hidden_norm(feature_TH)], -1)


class Vocabulary(nn.Module):
    """A network that guesses within a draft vocabulary."""

    d2t: Tensor
    t2d: Tensor

    def __init__(self, vocab_size: int, draft_vocab_size: int) -> None:
        super().__init__()
        self.register_buffer("d2t", torch.zeros(draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.zeros(vocab_size, dtype=torch.bool))

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        return draft_ids + self.d2t[draft_ids]

    def set_vocab(self, kept_D: Tensor) -> None:
        """Fix the draft vocabulary to these ascending target ids."""
        d2t, t2d = vocab.maps(kept_D, len(self.t2d))
        self.d2t.copy_(d2t)
        self.t2d.copy_(t2d)


class LayerDraft(Vocabulary, ABC):
    """A draft of one decoder layer. `embed_VH` is the target's embedding: frozen, shared, never
    saved."""

    def __init__(
        self, config: DraftConfig, embed_VH: Tensor, fc: nn.Linear, midlayer: Layer
    ) -> None:
        super().__init__(config.vocab_size, config.draft_vocab_size)
        if tuple(embed_VH.shape) != (config.vocab_size, config.hidden_size):
            raise ValueError(
                f"the target's embedding is {tuple(embed_VH.shape)}; the draft was made for "
                f"({config.vocab_size}, {config.hidden_size})"
            )
        self.config = config
        self.embed_VH = embed_VH
        self.fc = fc
        self.midlayer = midlayer
        self.rotary = LlamaRotaryEmbedding(config.llama())
        self.scaling = config.head_dim**-0.5

    @property
    def capture_layers(self) -> tuple[int, int, int]:
        return self.config.capture_layers

    @abstractmethod
    def fuse(self, features_TF: Tensor) -> Tensor:
        """What the target captured of each row to the feature that the draft reads, [T, H]."""

    @abstractmethod
    def mix(self, ids_T: Tensor, feature_TH: Tensor) -> tuple[Tensor, Tensor]:
        """What attention reads of tokens and features, and the residual stream [T, H]."""

    @abstractmethod
    def logits(self, out_TH: Tensor) -> Tensor:
        """Draft logits [T, Vd] of the layer's output."""

    def embed(self, ids: Tensor) -> Tensor:
        return nn.functional.embedding(ids, self.embed_VH)

    def query(self, mixed_T: Tensor, positions_T: Tensor) -> Tensor:
        """Rotated queries, [T, Q, D]."""
        return self._rotate(self._heads(self.midlayer.self_attn.q_proj(mixed_T)), positions_T)

    def key_value(self, mixed_T: Tensor, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values, each [T, N, D]."""
        attn = self.midlayer.self_attn
        key = self._rotate(self._heads(attn.k_proj(mixed_T)), positions_T)
        return key, self._heads(attn.v_proj(mixed_T))

    def forward(
        self,
        ids_T: Tensor,
        feature_TH: Tensor,
        positions_T: Tensor,
        cache: DraftCache,
        mask: Tensor | None = None,
        line: int = 0,
    ) -> Tensor:
        """Run rows after those that stand in the cache; the caller then advances the cache.

        The rows are those of one sequence, [T], or as many of each of several, [B, T].

        Args:
            ids_T: target ids; row i takes the token that follows the one its feature belongs to.
            feature_TH: fused target features, or the draft's own outputs fed back.
            positions_T: rotary positions; row i of a sequence has position i.
            mask: boolean [B or 1, 1, T, K], True where a row may see a key; causal when empty.
            line: the cache's line of the first of these sequences; the others' follow it.

        Returns:
            The layer's output before `norm`, [T, H] or [B, T, H]: next feature, and `logits`'
            input.
        """
        batch, rows = ids_T.shape if ids_T.dim() == 2 else (1, len(ids_T))
        positions = positions_T.flatten()
        mixed, residual = self.mix(ids_T, feature_TH)
        mixed = mixed.flatten(0, -2)
        query = self.query(mixed, positions)
        key, value = self.key_value(mixed, positions)
        place = cache.stage(batch, rows, line, ids_T.device)
        query, key, value = (
            x.view(batch, rows, *x.shape[1:]).transpose(1, 2) for x in (query, key, value)
        )
        k_BNKD, v_BNKD = cache.update(key, value, 0)
        if mask is None:
            mask = causal_mask(rows, place.starts, ids_T.device)
        added = None if mask is None else additive(mask, feature_TH.dtype)
        attended = grouped_attention(query, k_BNKD, v_BNKD, added, self.scaling)
        return self.midlayer.finish(
            residual, attended.transpose(1, 2).view(*feature_TH.shape[:-1], *attended.shape[1::2])
        )

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.config.head_dim)

    def _rotate(self, x_TnD: Tensor, positions_T: Tensor) -> Tensor:
        cos_TD, sin_TD = self.rotary(x_TnD, positions_T)
        cos, sin = cos_TD.unsqueeze(-2), sin_TD.unsqueeze(-2)
        return x_TnD * cos + rotate_half(x_TnD) * sin


class Draft(LayerDraft):
    """The EAGLE-3 draft."""

    midlayer: Midlayer

    def __init__(self, config: DraftConfig, embed_VH: Tensor) -> None:
        h = config.hidden_size
        super().__init__(config, embed_VH, nn.Linear(3 * h, h, bias=False), Midlayer(config))
        self.norm = RMSNorm(h, config.rms_norm_eps)
        self.lm_head = nn.Linear(h, config.draft_vocab_size, bias=False)

    def fuse(self, features_T3H: Tensor) -> Tensor:
        """`fc`: target features [T, 3H], ordered low, mid, high, to [T, H]."""
        out: Tensor = self.fc(features_T3H)
        return out

    def mix(self, ids_T: Tensor, feature_TH: Tensor) -> tuple[Tensor, Tensor]:
        return self.midlayer.mix(self.embed(ids_T), feature_TH), feature_TH

    def logits(self, out_TH: Tensor) -> Tensor:
        logits: Tensor = self.lm_head(self.norm(out_TH))
        return logits
