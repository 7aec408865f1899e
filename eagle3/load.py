"""A target's weights into memory: safetensors only, no code of the model's own, nothing fetched.

A quantised checkpoint is read as the values that it stands for, in the type that was asked for.
So features, answers and the proof are all of one and the same target, and no stage depends on the
kernels that a serving engine would use for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from eagle3.packed import unpacked

AS_VALUES = ("fp8", "mxfp4")
"""Quantisations that transformers undoes while it loads."""

PACKED = ("awq", "gptq")
"""Quantisations that are undone here (`eagle3.packed`)."""

BY_PACKAGE = ("bitsandbytes",)
"""Quantisations that a package of that name undoes after loading, where it is installed."""


def quantisation(config: dict[str, Any]) -> str | None:
    """How a `config.json` says that its weights are quantised: transformers' name of the method."""
    found = config.get("quantization_config")
    if not found:
        return None
    if found.get("load_in_4bit") or found.get("load_in_8bit"):
        return "bitsandbytes"
    return str(found.get("quant_method", "in a way that it does not name"))


def load_config(folder: Path | str) -> Any:
    """The config of an HF directory, as transformers has it."""
    return AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


def load_model(
    folder: Path | str,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    config: Any = None,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """The causal LM of an HF directory, ready to run, and transformers' notes on what it loaded.

    Args:
        config: takes the place of the folder's own, unless empty.
        options: for transformers' `from_pretrained`.
    """
    if config is None:
        config = load_config(folder)
    method = quantisation(config.to_dict())
    if method in AS_VALUES:
        config.quantization_config["dequantize"] = True
    kind: Any = AutoModelForCausalLM
    named: str | None = str(folder)
    if method in PACKED:
        options["state_dict"] = unpacked(Path(folder), config.quantization_config, dtype)
        del config.quantization_config
        with torch.device("meta"):
            kind = type(kind.from_config(config, trust_remote_code=False))
        named = None  # its weights are given, in place of files
    if method in BY_PACKAGE:
        options["device_map"] = {"": device}
    model, notes = kind.from_pretrained(
        named,
        config=config,
        dtype=dtype,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
        **options,
    )
    if named is None:
        say_generation(model, Path(folder))
    if method in BY_PACKAGE:
        model = model.dequantize(dtype)
    return model.to(device=device, dtype=dtype).eval(), notes


def say_generation(model: Any, folder: Path) -> None:
    """Give a model that was not made from a folder that folder's generation config."""
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(
            str(folder), local_files_only=True
        )
