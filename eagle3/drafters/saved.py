"""A method's weights on disk: `model.safetensors`, and `config.json` with its name and its target.

EAGLE-3 drafts have a layout of their own, the one that engines load (`eagle3.export.official`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import nn

from eagle3.errors import BadInput

WEIGHTS, CONFIG = "model.safetensors", "config.json"


def save(
    folder: Path,
    method: str,
    module: nn.Module,
    config: Mapping[str, Any],
    target: Mapping[str, str],
) -> None:
    """Write a method.

    Args:
        config: what it takes to build the module again, and settings of its drafter.
        target: hashes of the target that it was trained for, by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {n: t.detach().cpu().contiguous() for n, t in module.state_dict().items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    facts = {"method": method, "target": dict(target), "config": dict(config)}
    (folder / CONFIG).write_text(json.dumps(facts, indent=2) + "\n")


def read_config(folder: Path, method: str, target: Mapping[str, str]) -> dict[str, Any]:
    """The config that was saved.

    Raises:
        BadInput: the folder holds another method, or one of another target.
    """
    if not (folder / CONFIG).is_file():
        raise BadInput(
            f"{folder} holds no {method} weights (no {CONFIG})", "train the method first"
        )
    facts = json.loads((folder / CONFIG).read_text())
    if facts["method"] != method:
        raise BadInput(
            f"{folder} holds weights of {facts['method']}, and {method} was asked for",
            f"give the folder of {method}, or ask for {facts['method']}",
        )
    if facts["target"] != dict(target):
        raise BadInput(
            f"the {method} weights in {folder} were trained for another target: "
            f"{facts['target']}, not {dict(target)}",
            "train the method for this target",
        )
    config: dict[str, Any] = facts["config"]
    return config


def load_weights(folder: Path, module: nn.Module) -> None:
    """Fill a module; a tensor that is missing, unexpected or of another shape is an error."""
    module.load_state_dict(load_file(folder / WEIGHTS), strict=True)
    module.eval().requires_grad_(False)
