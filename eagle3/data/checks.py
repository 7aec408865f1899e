"""Can this be a target? Everything that config, tokenizer and file headers can tell, in seconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from eagle3.config import Recipe
from eagle3.data.architecture import Layers, skeleton
from eagle3.data.chat import prompt_ids
from eagle3.data.records import read_json
from eagle3.data.weights import Checkpoint, read_checkpoint
from eagle3.errors import BadInput
from eagle3.fit import context_length, mlp_width
from eagle3.load import AS_VALUES, BY_PACKAGE, PACKED, load_config, quantisation
from eagle3.packed import cannot_unpack
from eagle3.run import sha256_json
from eagle3.target import load_tokenizer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
)

DTYPES = ("float32", "bfloat16", "float16")


def check_config(folder: Path) -> Any:
    """The model's config, when it is one of a causal LM that transformers itself implements.

    Raises:
        BadInput: says what the model is instead.
    """
    raw = _raw_config(folder)
    tokenizer = folder / "tokenizer_config.json"
    for name, text in (("config.json", raw), ("tokenizer_config.json", _json_or_empty(tokenizer))):
        if "auto_map" in text:
            raise BadInput(
                f"{name} asks to run code that comes with the model (auto_map)",
                "only architectures that transformers itself implements can be targets",
            )
    if raw.get("is_encoder_decoder"):
        raise BadInput("the target is an encoder-decoder model; expected a decoder-only causal LM")
    _check_quantisation(raw)
    try:
        config = load_config(folder)
    except Exception as e:  # each config class of transformers checks its values in its own way
        raise BadInput(f"transformers cannot read the target's config.json: {_line(e)}") from None
    _check_causal(config)
    return config


def check_tokenizer(folder: Path, vocab_size: int) -> PreTrainedTokenizerBase:
    """The tokenizer, when it fits the embedding and has a chat template that works.

    Raises:
        BadInput: says which of these fails.
    """
    try:
        tokenizer = load_tokenizer(folder)
    except Exception as e:  # `tokenizers` raises plain Exception
        raise BadInput(f"the target's tokenizer cannot be loaded: {_line(e)}") from None
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if largest < 0:
        raise BadInput("the target's tokenizer has no tokens", "expected tokenizer.json")
    if largest >= vocab_size:
        raise BadInput(
            f"the tokenizer has token ids up to {largest:,}, the embedding {vocab_size:,} rows: "
            "the tokenizer is not this model's"
        )
    if tokenizer.chat_template is None:
        raise BadInput(
            "the target has no chat template, so its prompts cannot be rendered",
            "give an instruction-tuned model, or add chat_template.jinja to its files",
        )
    try:
        ids = prompt_ids(tokenizer, [{"role": "user", "content": "Hello"}])
    except Exception as e:  # a template is a program: it may fail in any way
        raise BadInput(f"the target's chat template does not work: {_line(e)}") from None
    if not ids:
        raise BadInput("the target's chat template makes nothing of a user's message")
    return tokenizer


def check_lengths(recipe: Recipe, context: int) -> None:
    """Every answer that the recipe asks for must leave room for a prompt.

    Raises:
        BadInput: names the recipe's key.
    """
    for section in ("regenerate", "parity", "benchmark", "prove"):
        length = getattr(recipe, section).max_new_tokens
        if length >= context:
            raise BadInput(
                f"{section}.max_new_tokens {length} leaves no room for a prompt in the target's "
                f"context of {context}"
            )


def describe(
    folder: Path, config: Any, tokenizer: PreTrainedTokenizerBase, layers: Layers
) -> dict[str, Any]:
    """The facts of `target.json` that the files hold; hashes whole files, so it comes last."""
    checkpoint = read_checkpoint(folder)
    text = config.get_text_config()
    quantised = quantisation(_raw_config(folder))
    facts = {
        "architecture": (config.architectures or ["unknown"])[0],
        "model_type": config.model_type,
        "num_layers": text.num_hidden_layers,
        "hidden_size": text.hidden_size,
        "intermediate_size": mlp_width(text),
        "vocab_size": text.vocab_size,
        "dtype": checkpoint.dtype if quantised is None else _computed_in(config),
        "max_position_embeddings": context_length(text),
        "parameters": checkpoint.parameters if quantised is None else _parameters(config),
        **file_hashes(folder, checkpoint),
        "template_sha256": hashlib.sha256(str(tokenizer.chat_template).encode()).hexdigest(),
        "capture_layers": list(layers),
    }
    return facts if quantised is None else facts | {"quantisation": quantised}


def file_hashes(folder: Path, checkpoint: Checkpoint) -> dict[str, str]:
    """What a target's files hold, by the names that these hashes have in `target.json`."""
    raw = _raw_config(folder)
    raw.pop("transformers_version", None)
    return {
        "weights_sha256": checkpoint.sha256(),
        "tokenizer_sha256": _tokenizer_sha256(folder),
        "config_sha256": sha256_json(raw),
    }


def check_unchanged(folder: Path, facts: Mapping[str, Any]) -> None:
    """Compare a target's files with what `resolve` found; reads whole files.

    Raises:
        BadInput: they have changed since; says what.
    """
    now = file_hashes(folder, read_checkpoint(folder))
    changed = [
        f"{name} was {facts[name]} and is {found}"
        for name, found in now.items()
        if facts[name] != found
    ]
    if changed:
        raise BadInput(
            f"the files of the target in {folder} have changed since the run began: "
            f"{'; '.join(changed)}",
            "put them back, or run every stage again for what they are now: eagle3 run RUN",
        )


def check_files(folder: Path, config: Any) -> Checkpoint:
    """The weight files, whose embedding must have the shape that the config says.

    Raises:
        BadInput: they are damaged, pickles, or of another model.
    """
    checkpoint = read_checkpoint(folder)
    text = config.get_text_config()
    expected = (text.vocab_size, text.hidden_size)
    for name, tensor in checkpoint.tensors.items():
        if name.endswith("embed_tokens.weight") and tensor.shape != expected:
            raise BadInput(
                f"{name} is {list(tensor.shape)}, config.json says {list(expected)}: the weights "
                "and the config are of different models"
            )
    if checkpoint.dtype not in DTYPES and quantisation(_raw_config(folder)) is None:
        raise BadInput(
            f"the target's weights are {checkpoint.dtype}; expected {', '.join(DTYPES)}",
            "give a copy of the checkpoint in one of these types",
        )
    return checkpoint


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _check_quantisation(raw: dict[str, Any]) -> None:
    method = quantisation(raw)
    if method is None or method in AS_VALUES or (method in BY_PACKAGE and find_spec(method)):
        return
    unread = cannot_unpack(raw["quantization_config"]) if method in PACKED else None
    if method in PACKED and unread is None:
        return
    plain = "give the checkpoint it was quantised from; a draft made for that one loads beside it"
    if method in BY_PACKAGE:
        raise BadInput(
            f"the target's weights are quantised by {method}, which is not installed here",
            f"pip install {method} (meant for GPUs), or {plain}",
        )
    raise BadInput(
        f"the target's weights are quantised ({method}{f', {unread}' if unread else ''}); of "
        f"quantised weights this engine reads {', '.join((*AS_VALUES, *BY_PACKAGE, *PACKED))}",
        plain,
    )


def _computed_in(config: Any) -> str:
    """The type that a quantised checkpoint computes in, in torch's name."""
    name = str(config.dtype or torch.bfloat16).removeprefix("torch.")
    return name if name in DTYPES else "bfloat16"


def _parameters(config: Any) -> int:
    """Weights of the model; a quantised file holds several in one number."""
    return sum(p.numel() for p in skeleton(config).parameters())


def _check_causal(config: Any) -> None:
    known: set[str] = set()
    for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        known.update([names] if isinstance(names, str) else names)
    said = (config.architectures or [None])[0]
    if config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and (not said or said in known):
        return
    text = getattr(getattr(config, "text_config", None), "model_type", None)
    raise BadInput(
        f"{said or config.model_type} is not a causal language model",
        f"its text part ({text}) can be a target as a checkpoint of its own"
        if text in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        else "",
    )


def _raw_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise BadInput(f"{folder} has no config.json", "expected a Hugging Face model directory")
    try:
        raw = read_json(path)
    except ValueError:
        raw = None
    if not isinstance(raw, dict):
        raise BadInput(f"{path} is not a JSON object")
    return raw


def _json_or_empty(path: Path) -> dict[str, Any]:
    try:
        found = read_json(path) if path.is_file() else {}
    except json.JSONDecodeError:
        raise BadInput(f"{path} is not JSON") from None
    return found if isinstance(found, dict) else {}


def _tokenizer_sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in TOKENIZER_FILES:
        if (folder / name).is_file():
            digest.update(name.encode() + b"\0" + (folder / name).read_bytes())
    return digest.hexdigest()
