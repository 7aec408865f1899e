"""One way to read a draft's files, and the network that this way makes of them.

`eagle3.export.official` refuses a broken draft; engines take it and say nothing. Here it is read as
they read it, so that it can be measured: a linear that the file lacks is zeros, a norm ones, `d2t`
zeros. A correction is another reading of the same files.

Shapes: H hidden size, V target vocabulary, Vd draft vocabulary, F what `fc` reads (3H).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eagle3 import fit, vocab
from eagle3.draft import Draft, DraftConfig, Midlayer
from eagle3.errors import BadInput
from eagle3.export import official
from eagle3.export.layers import ENGINES, LAYER_KEY
from eagle3.lean import RMSNorm
from eagle3.target import Target

Norm = Literal["norm_output", "norm_before_residual", "norm_before_fc", "fc_norm"]
"""Departures from EAGLE-3, as configs name them: the output is fed back after `norm`; the residual
stream is the normed feature; all features are normed before `fc`, together or each by itself."""

NORMS: tuple[Norm, ...] = ("norm_output", "norm_before_residual", "norm_before_fc", "fc_norm")

SIZES = ("hidden_size", "intermediate_size", "vocab_size", "hidden_act", "rms_norm_eps")


@dataclass(frozen=True)
class Reading:
    """A draft's tensors, and all that decides what they mean."""

    tensors: dict[str, Tensor]
    config: DraftConfig
    norms: frozenset[Norm] = frozenset()
    dtype: torch.dtype = torch.float32
    """What it computes in."""
    own_embedding: bool = False
    """Reads the embedding in its file, not the target's."""
    knows: bool = False
    """Is told each token that its vocabulary lacks: what acceptance could be at most."""

    def having(self, **config: Any) -> Self:
        """The same with other values in the config."""
        return replace(self, config=replace(self.config, **config))

    def holding(self, **tensors: Tensor) -> Self:
        """The same with other tensors; `__` stands for the dot in a name."""
        named = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
        return replace(self, tensors=self.tensors | named)

    def missing(self) -> list[str]:
        """Tensors that the layout asks for and the file lacks."""
        wanted = official.tensor_shapes(self.config).keys() - {"t2d"}
        if official.is_whole(self.config):
            wanted -= {"d2t"}
        return sorted(wanted - self.tensors.keys())

    def misshapen(self) -> dict[str, tuple[int, ...]]:
        """Tensors of another shape than the config asks for, with the shape that it asks for."""
        wanted = official.tensor_shapes(self.config)
        return {
            name: wanted[name]
            for name, tensor in sorted(self.tensors.items())
            if name in wanted and tuple(tensor.shape) != wanted[name]
        }

    def draft(self, embed_VH: Tensor) -> Draft:
        """The network, ready to run; a tensor that does not fit counts as missing."""
        if self.own_embedding:
            embed_VH = self.tensors["embed_tokens.weight"].to(embed_VH)
        with torch.device("meta"):  # no time for weights that are not used
            draft = _Loose(self.config, embed_VH, self.norms)
        state = {name: self._filled(name, place) for name, place in draft.state_dict().items()}
        state["t2d"] = _mask(state["d2t"], self.config.vocab_size)
        draft.load_state_dict(state, strict=True, assign=True)
        draft.rotary = LlamaRotaryEmbedding(self.config.llama())
        draft.embed_VH = embed_VH.to(self.dtype)
        return draft.to(device=embed_VH.device, dtype=self.dtype).eval().requires_grad_(False)

    def _filled(self, name: str, place: Tensor) -> Tensor:
        """The file's tensor, or what stands for one that is missing or does not fit."""
        found = self.tensors.get(name)
        if found is not None and found.shape == place.shape:
            return found
        norm = place.dim() == 1 and place.is_floating_point()
        return torch.full(place.shape, 1 if norm else 0, dtype=place.dtype, device="cpu")


def read(folder: Path, target: Target, engine: str = "vllm") -> tuple[Reading, dict[str, Any]]:
    """A draft as its own files say it is to be read, and its `config.json`.

    What the config lacks is taken from the target, the rotary base aside: engines take 10000 then.

    Args:
        engine: whose reading of a list of captured layers to follow.

    Raises:
        BadInput: there is no config or no safetensors file that can be read.
    """
    raw = _raw_config(folder)
    stored = _tensors(folder)
    tensors = {_name(name): _exact(tensor) for name, tensor in stored.items()}
    reading = Reading(
        tensors,
        _config(raw, target, tensors, _captured(raw, target.num_layers, engine)),
        frozenset(norm for norm in NORMS if raw.get(norm) or _eagle(raw).get(norm)),
        _half(raw, stored),
    )
    return reading, raw


def _raw_config(folder: Path) -> dict[str, Any]:
    path, hint = folder / "config.json", "expected config.json and model.safetensors"
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise BadInput(f"{path} cannot be read: {e}", hint) from None
    if not isinstance(raw, dict):
        raise BadInput(f"{path} is no JSON object", hint)
    return {**raw, **raw.pop("transformer_layer_config", {})} if raw else raw


def _tensors(folder: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            found |= load_file(file)
        except (OSError, SafetensorError) as e:
            raise BadInput(f"{file} cannot be read: {e}", "copy it again") from None
    if not found:
        raise BadInput(f"{folder} holds no safetensors file", "expected model.safetensors")
    return found


def _name(name: str) -> str:
    """The official name of a tensor."""
    name = name.removeprefix("model.")
    return name.replace("layers.0.", "midlayer.") if name.startswith("layers.0.") else name


def _exact(tensor: Tensor) -> Tensor:
    """In float32, which holds every value of the half types."""
    return tensor.float() if tensor.is_floating_point() else tensor


def _mask(d2t: Tensor, vocab_size: int) -> Tensor:
    """`t2d` of what `d2t` names; an index beyond the vocabulary is never a token here."""
    kept = vocab.kept_ids(d2t)
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[kept[(kept >= 0) & (kept < vocab_size)]] = True
    return t2d


def _eagle(raw: dict[str, Any]) -> dict[str, Any]:
    found = raw.get("eagle_config")
    return found if isinstance(found, dict) else {}


def _captured(raw: dict[str, Any], count: int, engine: str) -> tuple[int, int, int]:
    """The layers that an engine captures for this config; a list of another length is as none."""
    listed = _eagle(raw).get(LAYER_KEY)
    if engine != "sglang":
        listed = raw.get(LAYER_KEY) or listed
    if not isinstance(listed, list) or len(listed) != 3:
        listed = None
    low, mid, high = ENGINES.get(engine, ENGINES["vllm"]).captured(listed, count)
    return min(low, count), min(mid, count), min(high, count)


def _config(
    raw: dict[str, Any], target: Target, tensors: dict[str, Tensor], layers: tuple[int, int, int]
) -> DraftConfig:
    head = tensors.get("lm_head.weight")
    size = raw.get("draft_vocab_size") or (target.vocab_size if head is None else len(head))
    fitting = DraftConfig.for_target(target.config, layers, size)
    said: dict[str, Any] = {key: raw[key] for key in SIZES if raw.get(key) is not None}
    heads = raw.get("num_attention_heads") or fitting.num_attention_heads
    hidden = said.get("hidden_size", fitting.hidden_size)
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = raw.get("rope_theta") or fit.DEFAULT_THETA
    return replace(
        fitting,
        **said,
        num_attention_heads=heads,
        num_key_value_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or hidden // heads,
        rope_parameters={"rope_type": "default", "rope_theta": theta} | _typed(rope),
        max_position_embeddings=raw.get("max_position_embeddings")
        or fitting.max_position_embeddings,
        draft_vocab_size=size,
    )


def _typed(rope: dict[str, Any]) -> dict[str, Any]:
    """Rotary scaling under the names of today."""
    return {"rope_type" if key == "type" else key: value for key, value in rope.items()}


def _half(raw: dict[str, Any], stored: dict[str, Tensor]) -> torch.dtype:
    """float16 where it is served in that; all else has float32's range and is computed in it."""
    said = str(raw.get("torch_dtype") or raw.get("dtype") or "").removeprefix("torch.")
    kinds = {tensor.dtype for tensor in stored.values() if tensor.is_floating_point()}
    in_half = said == "float16" or (not said and kinds == {torch.float16})
    return torch.float16 if in_half else torch.float32


class _Loose(Draft):
    """A draft with norms in other places, where a config asks for them."""

    def __init__(self, config: DraftConfig, embed_VH: Tensor, norms: frozenset[Norm]) -> None:
        super().__init__(config, embed_VH)
        self.norms = norms
        if "norm_output" in norms:
            self.midlayer = _NormedOutput(config, self.norm)
        if norms & {"norm_before_fc", "fc_norm"}:
            self.input_norm = RMSNorm(3 * config.hidden_size, config.rms_norm_eps)

    def fuse(self, features_TF: Tensor) -> Tensor:
        if "norm_before_fc" in self.norms:
            features_TF = self.input_norm(features_TF)
        elif "fc_norm" in self.norms:
            parts = features_TF.unflatten(-1, (3, -1)).float()
            scale = (parts.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt()
            features_TF = (parts * scale).flatten(-2).to(features_TF) * self.input_norm.weight
        return super().fuse(features_TF)

    def mix(self, ids_T: Tensor, feature_TH: Tensor) -> tuple[Tensor, Tensor]:
        mixed, residual = super().mix(ids_T, feature_TH)
        if "norm_before_residual" in self.norms:
            residual = self.midlayer.hidden_norm(feature_TH)
        return mixed, residual

    def logits(self, out_TH: Tensor) -> Tensor:
        return self.lm_head(out_TH) if "norm_output" in self.norms else super().logits(out_TH)


class _NormedOutput(Midlayer):
    """What it hands on, to the head and to the next step, is normed already."""

    def __init__(self, config: DraftConfig, norm: RMSNorm) -> None:
        super().__init__(config)
        self.after = [norm]  # in a list: it is the draft's module, not one more of this one

    def finish(self, residual_TH: Tensor, attended_TQD: Tensor) -> Tensor:
        return self.after[0](super().finish(residual_TH, attended_TQD))
