"""The target: load it, run it over a rollback cache, capture features, reach embedding and head.

Shapes: B sequences, L rows, K keys (rows in the cache and new ones), H hidden size, V vocabulary,
3H the three captured features in order low, mid, high.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from eagle3.decode.attention import NAME, additive, causal_mask, soft_capped
from eagle3.decode.cache import RollbackCache
from eagle3.fit import context_length
from eagle3.load import load_model

SCORES_BYTES = 2**28
"""Cap on one layer's attention scores while prompts are read in."""


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


def windows(config: Any) -> list[int | None]:
    """The sliding window of each layer, in tokens; None where a layer sees all before it."""
    layers = [config] * config.num_hidden_layers
    if getattr(config, "is_heterogeneous", False):
        layers = config.per_layer_config
    types = getattr(config, "layer_types", None) or ["sliding_attention"] * len(layers)
    return [
        getattr(layer, "sliding_window", None) or None if kind == "sliding_attention" else None
        for layer, kind in zip(layers, types, strict=False)
    ]


def logit_scale(config: Any) -> float:
    """What the head's output is multiplied by (Cohere; Granite divides)."""
    divisor: float | None = getattr(config, "logits_scaling", None)
    factor: float | None = getattr(config, "logit_scale", None)
    return (1.0 if factor is None else factor) / (1.0 if divisor is None else divisor)


class Target:
    """A causal LM of transformers, frozen, with its features within reach."""

    def __init__(self, model: Any, capture_layers: tuple[int, int, int] | None = None) -> None:
        self.model = model.eval().requires_grad_(False)
        self.body: Any = model.get_decoder()
        self.config: Any = model.config.get_text_config()
        self.layers: nn.ModuleList = self.body.layers
        self.num_layers = len(self.layers)
        self.hidden_size: int = self.config.hidden_size
        self.vocab_size: int = self.config.vocab_size
        self.context = context_length(self.config)
        self.capture_layers = capture_layers or default_capture_layers(self.num_layers)
        self._captured: dict[int, Tensor] | None = None
        for index in self.capture_layers:
            self.layers[index].register_forward_pre_hook(self._capture(index))
        self._windowed: dict[int, Tensor] = {}
        sliding = [(i, w) for i, w in enumerate(windows(self.config)) if w is not None]
        for index, window in sliding:
            self.layers[index].register_forward_pre_hook(self._window(window), with_kwargs=True)
        self.windows = {window for _, window in sliding}
        self.logit_scale = logit_scale(self.config)
        self.softcap: float | None = getattr(self.config, "final_logit_softcapping", None)
        self.body.set_attn_implementation(NAME)

    @classmethod
    def load(
        cls,
        path: Path | str,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        capture_layers: tuple[int, int, int] | None = None,
    ) -> Self:
        """Load from a local HF directory (`eagle3.load`)."""
        return cls(load_model(path, dtype, device)[0], capture_layers)

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
        """The LM head's weight, [V, H]; a constant scale of the logits is in it."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight if self.logit_scale == 1 else weight * self.logit_scale

    def eos_ids(self) -> frozenset[int]:
        """Token ids at which generation ends, from the generation config or else the config."""
        ids = self.model.generation_config.eos_token_id
        ids = self.config.eos_token_id if ids is None else ids
        return frozenset([ids] if isinstance(ids, int) else ids or [])

    def new_cache(self, capacity: int, batch: int = 1, in_use: bool = True) -> RollbackCache:
        return RollbackCache(self.num_layers, batch, capacity, in_use)

    def rows_at_once(self, batch: int, longest: int) -> int:
        """Rows of each sequence to read in at once, so that one layer's scores stay small."""
        return max(1, SCORES_BYTES // (4 * batch * self.config.num_attention_heads * longest))

    @torch.inference_mode()
    def forward(
        self,
        ids_BL: Tensor,
        cache: RollbackCache,
        *,
        positions_BL: Tensor | None = None,
        mask: Tensor | None = None,
        capture: bool = False,
        line: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """Run rows after those that stand in the cache; the caller then advances the cache.

        Args:
            positions_BL: rotary positions; the rows after the cache's when empty.
            mask: boolean [B or 1, 1, L, K], True where a row may see a key; causal when empty. K
                is L more than what stands in the longest line.
            capture: also return the features.
            line: the cache's line of the first of these sequences; the others' follow it.

        Returns:
            The final normed hidden state [B, L, H], and the features [B, L, 3H] when captured.
        """
        batch, rows = ids_BL.shape
        place = cache.stage(batch, rows, line, ids_BL.device)
        if positions_BL is None:
            positions_BL = place.following(ids_BL.device)
        if mask is None:
            mask = causal_mask(rows, place.starts, ids_BL.device)
        positions_BL = positions_BL.expand(batch, -1)
        self._windowed = self._window_masks(positions_BL, cache, mask)
        self._captured = {} if capture else None
        hidden_BLH = self.body(
            input_ids=ids_BL,
            position_ids=positions_BL,
            attention_mask=None if mask is None else additive(mask, self.dtype),
            cache=cache,
            use_cache=True,
        ).last_hidden_state
        captured, self._captured = self._captured, None
        if captured is None:
            return hidden_BLH, None
        return hidden_BLH, torch.cat([captured[i] for i in self.capture_layers], dim=-1)

    def accompany(self) -> None:
        """Go along with other processes' forwards, where these need this one (`eagle3.spread`)."""

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of final normed hidden states [..., H]."""
        out: Tensor = self.model.get_output_embeddings()(hidden)
        if self.logit_scale != 1:
            out = out * self.logit_scale
        return soft_capped(out, self.softcap)

    def _window_masks(
        self, positions_BL: Tensor, cache: RollbackCache, mask: Tensor | None
    ) -> dict[int, Tensor]:
        """Additive masks [B, 1, L, K] by window, for windows that hide something by now."""
        if not self.windows:
            return {}
        positions_BK = cache.place(positions_BL)
        narrow = [w for w in self.windows if w < positions_BK.shape[1]]
        if not narrow:
            return {}
        back_B1LK = (positions_BL[:, :, None] - positions_BK[:, None, :])[:, None]
        masks = {}
        for window in narrow:
            near = back_B1LK < window
            masks[window] = additive(near if mask is None else near & mask, self.dtype)
        return masks

    def _window(self, window: int) -> Any:
        def narrow(
            _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
            mask = self._windowed.get(window)
            return None if mask is None else (args, kwargs | {"attention_mask": mask})

        return narrow

    def _capture(self, index: int) -> Any:
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
