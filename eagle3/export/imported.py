"""A draft that another tool trained, read into this package's terms: names, maps, layers, checks.

The tools agree on the tensors and differ in what they call the layer, in which maps they write and
in how they count captured layers. What this package's draft has not is refused by name: read on, it
would draft badly without a word.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eagle3 import fit, vocab
from eagle3.draft import DraftConfig
from eagle3.errors import BadInput
from eagle3.export import fits, gguf, official
from eagle3.export.flags import unsupported
from eagle3.export.layers import LAYER_KEY, TOOLS, Layers, default
from eagle3.export.official import Stored
from eagle3.load import load_config
from eagle3.spread import load_rows

PICKLED = ("pytorch_model.bin", "model.pt", "model.ckpt")
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Layout:
    """How a tool's directory is told from the others', and what it calls the layer."""

    architectures: tuple[str, ...]
    layer: str


LAYOUTS = {
    "speculators": Layout(("Eagle3DraftModel", "Eagle3Speculator"), "layers.0."),
    "modelopt": Layout(("LlamaForCausalLMEagle3",), "layers.0."),
    "updraft": Layout(("LlamaForCausalLMEagle3",), "midlayer."),
    "specforge": Layout(("LlamaForCausalLMEagle3",), "midlayer."),
    "angelslim": Layout(("Eagle3LlamaForCausalLM",), "midlayer."),
    "eagle": Layout(("LlamaForCausalLM",), "midlayer."),
}


@dataclass(frozen=True)
class Imported:
    """A draft, and where it came from."""

    stored: Stored
    tool: str
    """A key of `LAYOUTS`, or `gguf`."""
    dtype: torch.dtype


def read(draft: Path, target: Path, layers: Layers | None = None) -> Imported:
    """Read a draft of any of the layouts.

    Args:
        draft: a directory, or a GGUF file.
        target: the HF directory of the model that it drafts for.
        layers: what it captures, as indices into HF `hidden_states`; as its tool writes them where
            None.

    Raises:
        BadInput: no draft, a pickle, unknown or missing tensors, flags that this package's draft
            has not, another target's, or layers whose meaning is not certain.
    """
    config = load_config(target).get_text_config()
    if draft.suffix == ".gguf":
        found = _read_gguf(draft, config)
    else:
        found = _read_directory(draft, target, config, layers)
    c = replace(
        found.stored.config,
        max_position_embeddings=fit.context_length(config),
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    )
    if differing := list(fits.problems(c, None, config, config.num_hidden_layers)):
        raise BadInput(
            f"{draft} is not a draft for {target}: " + "; ".join(differing),
            "name the target that it was trained for",
        )
    return replace(found, stored=replace(found.stored, config=c))


def _read_gguf(file: Path, config: Any) -> Imported:
    try:
        stored = gguf.read(file, config)
    except FileNotFoundError:
        raise BadInput(f"{file} does not exist", "name a directory or a GGUF file") from None
    except (ValueError, KeyError) as e:
        raise BadInput(f"{file} is not a draft: {e}", "expected an EAGLE-3 draft") from None
    return Imported(stored, "gguf", torch.float32)


def _read_directory(draft: Path, target: Path, config: Any, layers: Layers | None) -> Imported:
    raw, tensors = _files(draft)
    tool = layout_of(raw, set(tensors))
    raw |= raw.get("transformer_layer_config") or {}
    if refused := list(unsupported(raw)):
        raise _no_draft(draft, "; ".join(refused))
    layers = layers or _layers(draft, raw, tool, config.num_hidden_layers)
    try:
        c = official.sizes(raw, layers)
    except KeyError as e:
        raise _no_draft(draft, f"its config.json lacks {e}") from None
    if raw.get("target_hidden_size") not in (None, c.hidden_size):
        raise _no_draft(draft, f"it is narrower or wider than its target: {c.hidden_size}")
    if c.rope_parameters["rope_type"] == "yarn":
        c.rope_parameters.setdefault("original_max_position_embeddings", c.max_position_embeddings)
    named = {_official_name(name, LAYOUTS[tool].layer): t for name, t in tensors.items()}
    dtype = _dtype(draft, named)
    _drop_embedding(draft, named, target)
    _complete_maps(draft, named, c)
    try:
        shapes = {name: tuple(t.shape) for name, t in named.items()}
        official.check_tensors(shapes, c, draft)
        vocab.check(named["d2t"], named["t2d"])
    except ValueError as e:
        raise _no_draft(draft, str(e)) from None
    return Imported(Stored(c, named), tool, dtype)


def layout_of(raw: dict[str, Any], names: set[str]) -> str:
    """Which tool wrote a directory.

    Raises:
        BadInput: none of those that are known.
    """
    if (kind := raw.get("speculators_model_type", "eagle3")) != "eagle3":
        raise BadInput(f"it is a {kind} draft of speculators", "expected an EAGLE-3 draft")
    if "speculators_model_type" in raw:
        return "speculators"
    said = (raw.get("architectures") or [""])[0]
    layer = "layers.0." if any(name.startswith("layers.0.") for name in names) else "midlayer."
    fitting = [t for t, o in LAYOUTS.items() if said in o.architectures and layer == o.layer]
    if "updraft" in fitting:
        return "updraft" if "num_target_layers" in raw else "specforge"
    if not fitting:
        known = sorted({a for layout in LAYOUTS.values() for a in layout.architectures})
        raise BadInput(
            f"its architecture is {said or 'not named'}, its layer {layer}: no known layout",
            f"expected one of {', '.join(known)}",
        )
    return fitting[0]


def _files(draft: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and all tensors of a directory."""
    if not (draft / "config.json").is_file():
        raise BadInput(f"{draft} has no config.json", "name the directory of a draft")
    files = sorted(draft.glob("*.safetensors"))
    pickled = [name for name in PICKLED if (draft / name).is_file()]
    if not files and pickled:
        raise BadInput(
            f"{draft / pickled[0]} is a pickle: loading it would run what it says",
            "ask its author for model.safetensors, or convert it where it can do no harm",
        )
    if not files:
        raise BadInput(f"{draft} has no safetensors file", "expected model.safetensors")
    tensors: dict[str, Tensor] = {}
    try:
        raw: dict[str, Any] = json.loads((draft / "config.json").read_text())
        for file in files:
            tensors |= load_file(file)
    except (SafetensorError, json.JSONDecodeError) as e:
        raise BadInput(f"{draft} cannot be read: {e}", "copy it again") from None
    return raw, tensors


def _layers(draft: Path, raw: dict[str, Any], tool: str, num_layers: int) -> Layers:
    """What a tool's list of layers means."""
    reading = TOOLS[tool]
    eagle = raw.get("eagle_config") or {}
    here, there = (eagle, raw) if "eagle_config" in reading.where else (raw, eagle)
    listed = here.get(LAYER_KEY)
    if listed is None and there.get(LAYER_KEY) is not None:
        raise _uncertain(draft, f"{there[LAYER_KEY]} does not stand where {tool} writes it")
    if listed is not None and len(listed) != 3:
        raise _no_draft(draft, f"it captures {len(listed)} layers, expected 3")
    layers = reading.captured(listed, num_layers)
    if listed is not None and reading.shift and tuple(listed) == default(num_layers):
        raise _uncertain(draft, f"{listed} are HF's indices of the default layers, not {tool}'s")
    if not 0 <= layers[0] < layers[1] < layers[2] < num_layers:
        raise _uncertain(draft, f"{listed} means {layers} to {tool}, of {num_layers} layers")
    return layers


def _official_name(name: str, layer: str) -> str:
    return "midlayer." + name.removeprefix(layer) if name.startswith(layer) else name


def _dtype(draft: Path, tensors: dict[str, Tensor]) -> torch.dtype:
    quantised = sorted(
        n for n, t in tensors.items() if n not in ("d2t", "t2d") and t.dtype not in FLOATS
    )
    if quantised:
        raise _no_draft(draft, f"quantised: {', '.join(quantised)}")
    found = tensors.get("fc.weight")
    return torch.float32 if found is None else found.dtype


def _drop_embedding(draft: Path, tensors: dict[str, Tensor], target: Path) -> None:
    """An embedding in the file must be the target's, which takes its place."""
    embed_VH = tensors.pop("embed_tokens.weight", None)
    if embed_VH is None:
        return
    targets_VH = load_rows(target, "cpu").embed.weight.detach().to(embed_VH.dtype)
    if embed_VH.shape != targets_VH.shape or not torch.equal(embed_VH, targets_VH):
        raise _no_draft(draft, "embed_tokens.weight is not the target's embedding")


def _complete_maps(draft: Path, tensors: dict[str, Tensor], c: DraftConfig) -> None:
    """Write the maps that a tool leaves out: both for a full vocabulary, `t2d` always."""
    if "d2t" not in tensors and official.is_whole(c):
        tensors["d2t"] = torch.zeros(c.vocab_size, dtype=torch.int64)
        tensors.pop("t2d", None)
    if "d2t" not in tensors:
        raise _no_draft(draft, f"d2t is missing, of {c.draft_vocab_size} draft ids")
    tensors["d2t"] = tensors["d2t"].to(torch.int64)
    if "t2d" in tensors:
        tensors["t2d"] = tensors["t2d"].bool()
        return
    kept = vocab.kept_ids(tensors["d2t"])
    if bool((kept < 0).any()) or bool((kept >= c.vocab_size).any()):
        raise _no_draft(draft, "d2t points outside the target vocabulary: is it offsets?")
    tensors["t2d"] = vocab.maps(kept, c.vocab_size)[1]


def _no_draft(draft: Path, why: str) -> BadInput:
    return BadInput(
        f"{draft} is not a draft that this package has: {why}",
        "expected one decoder layer over three captured layers, with nothing but EAGLE-3's tensors",
    )


def _uncertain(draft: Path, why: str) -> BadInput:
    return BadInput(
        f"{draft}: which layers it captures is not certain: {why}",
        "say which, as indices into HF hidden_states: --layers LOW MID HIGH",
    )
