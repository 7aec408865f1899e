"""The target: load it, run it over a rollback cache, capture features, reach embedding and head.

Shapes: B sequences, L rows, H hidden size, V vocabulary, 3H the three captured features in order
low, mid, high.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from eagle3.decode.attention import NAME, additive, causal_mask
from eagle3.decode.cache import RollbackCache


def default_capture_layers(num_layers: int) -> tuple[int, int, int]:
    """(2, n // 2, n - 3): indices into HF `hidden_states`, the residual stream entering a layer.

    Raises:
        ValueError: fewer than 7 layers, where the three would not be three different layers.
    """
    if num_layers < 7:
        raise ValueError(
            f"the target has {num_layers} layers; features are taken at layers 2, n//2 and n-3, "
            "which needs at least 7"
        )
    return 2, num_layers // 2, num_layers - 3


class Target:
    """A causal LM of transformers, frozen, with its features within reach."""

    def __init__(self, model: Any, capture_layers: tuple[int, int, int] | None = None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.body: Any = model.base_model
        self.config: Any = model.config.get_text_config()
        self.layers: nn.ModuleList = self.body.layers
        self.num_layers = len(self.layers)
        self.hidden_size: int = self.config.hidden_size
        self.vocab_size: int = self.config.vocab_size
        self.capture_layers = capture_layers or default_capture_layers(self.num_layers)
        self._captured: dict[int, Tensor] | None = None
        for index in self.capture_layers:
            self.layers[index].register_forward_pre_hook(self._hook(index))
        model.set_attn_implementation(NAME)

    @classmethod
    def load(
        cls,
        path: Path | str,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        capture_layers: tuple[int, int, int] | None = None,
    ) -> Self:
        """Load from a local HF directory: safetensors only, no remote code, nothing fetched."""
        model = AutoModelForCausalLM.from_pretrained(
            str(path),
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
        )
        return cls(model.to(device), capture_layers)

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embed.weight.dtype

    @property
    def embed(self) -> nn.Embedding:
        """The token embedding, [V, H]."""
        embedding: nn.Embedding = self.model.get_input_embeddings()
        return embedding

    def head_weight(self) -> Tensor:
        """The LM head's weight, [V, H]."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    def eos_ids(self) -> frozenset[int]:
        """Token ids at which generation ends, from the generation config or else the config."""
        ids = self.model.generation_config.eos_token_id
        ids = self.config.eos_token_id if ids is None else ids
        return frozenset([ids] if isinstance(ids, int) else ids or [])

    def new_cache(self, capacity: int, batch: int = 1) -> RollbackCache:
        return RollbackCache(self.num_layers, batch, capacity)

    @torch.inference_mode()
    def forward(
        self,
        ids_BL: Tensor,
        cache: RollbackCache,
        *,
        positions_BL: Tensor | None = None,
        mask: Tensor | None = None,
        capture: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Run rows after those that stand in the cache; the caller then advances the cache.

        Args:
            positions_BL: rotary positions; the rows after the cache's when empty.
            mask: boolean [B or 1, 1, L, cache.length + L], True where a row may see a key;
                causal when empty.
            capture: also return the features.

        Returns:
            The final normed hidden state [B, L, H], and the features [B, L, 3H] when captured.
        """
        batch, rows = ids_BL.shape
        if positions_BL is None:
            start = cache.length
            positions_BL = torch.arange(start, start + rows, device=ids_BL.device)[None]
        if mask is None and rows > 1:
            mask = causal_mask(rows, cache.length, ids_BL.device)
        self._captured = {} if capture else None
        hidden_BLH = self.body(
            input_ids=ids_BL,
            position_ids=positions_BL.expand(batch, -1),
            attention_mask=None if mask is None else additive(mask, self.dtype),
            cache=cache,
            use_cache=True,
        ).last_hidden_state
        captured, self._captured = self._captured, None
        if captured is None:
            return hidden_BLH, None
        return hidden_BLH, torch.cat([captured[i] for i in self.capture_layers], dim=-1)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of final normed hidden states [..., H]."""
        out: Tensor = self.model.get_output_embeddings()(hidden)
        cap = getattr(self.config, "final_logit_softcapping", None)
        return out if cap is None else cap * torch.tanh(out / cap)

    def _hook(self, index: int) -> Any:
        def capture(_: nn.Module, args: tuple[Tensor, ...]) -> None:
            if self._captured is not None:
                self._captured[index] = args[0]

        return capture


def load_tokenizer(path: Path | str) -> PreTrainedTokenizerBase:
    """The tokenizer of a local HF directory."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        str(path), local_files_only=True, trust_remote_code=False
    )
    return tokenizer
