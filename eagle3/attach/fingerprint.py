"""What a checkpoint is: sizes, hashes, and a sample of its weights to tell how far two are apart.

A hash says whether two checkpoints are the same; the sample says whether one is the other after a
little fine-tuning. It is read row by row: a checkpoint of any size takes seconds.
"""

from __future__ import annotations

import base64
import hashlib
import random
from pathlib import Path
from typing import Any, Self

import torch
from pydantic import ValidationError
from safetensors import safe_open
from torch import Tensor

from eagle3.data.records import Record
from eagle3.data.weights import read_checkpoint
from eagle3.errors import BadInput

FILE = "fingerprint.json"
TENSORS = 512
"""Tensors that are sampled at most, evenly spread over all."""
ROWS, COLUMNS = 4, 16
"""Of each: rows, and values of a row."""
FACTS = (
    "architecture", "model_type", "num_layers", "hidden_size", "vocab_size", "parameters",
    "weights_sha256", "tokenizer_sha256", "template_sha256", "config_sha256",
)  # fmt: skip


class Fingerprint(Record):
    """A checkpoint's sizes and hashes, by the names that `target.json` has for them."""

    architecture: str
    model_type: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    parameters: int
    weights_sha256: str
    tokenizer_sha256: str
    template_sha256: str
    config_sha256: str
    samples: dict[str, str]
    """Of some tensors, values at places that name and shape decide: float32, base64."""

    @classmethod
    def of(cls, folder: Path, facts: dict[str, Any]) -> Self:
        """Of a checkpoint whose facts are known; reads a few rows of its weights.

        Args:
            facts: those of `target.json`.
        """
        known = {name: facts[name] for name in FACTS}
        return cls(**known, samples={n: _packed(v) for n, v in _sampled(folder).items()})

    @classmethod
    def read(cls, path: Path) -> Self:
        """A stored one.

        Raises:
            BadInput: the file is none.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except (ValidationError, FileNotFoundError) as e:
            raise BadInput(f"{path} is no fingerprint: {e}", "eagle3 fingerprint TARGET") from None


def fingerprint(folder: Path) -> Fingerprint:
    """Of a target's directory; hashes whole files.

    Raises:
        BadInput: it cannot be a target.
    """
    from eagle3.data.architecture import check_structure
    from eagle3.data.checks import check_config, check_files, check_tokenizer, describe

    config = check_config(folder)
    layers = check_structure(config, None)
    check_files(folder, config)
    tokenizer = check_tokenizer(folder, config.get_text_config().vocab_size)
    return Fingerprint.of(folder, describe(folder, config, tokenizer, layers))


def distance(one: Fingerprint, other: Fingerprint) -> float | None:
    """How far apart the weights of two checkpoints are: the mean over tensors of
    |a - b| / max(|a|, |b|), from the samples. 0 is the same, about 1.4 is unrelated; None where the
    two have no tensors in common that could be compared.
    """
    if one.weights_sha256 == other.weights_sha256:
        return 0.0
    apart = []
    for name in one.samples.keys() & other.samples.keys():
        a, b = _unpacked(one.samples[name]), _unpacked(other.samples[name])
        if a.shape == b.shape:
            longer = max(float(a.norm()), float(b.norm()))
            apart.append(float((a - b).norm()) / longer if longer else 0.0)
    return sum(apart) / len(apart) if apart else None


def _sampled(folder: Path) -> dict[str, Tensor]:
    """Values of evenly spread tensors by name, each file opened once."""
    checkpoint = read_checkpoint(folder)
    names = sorted(checkpoint.tensors)
    wanted = set(names[:: -(-len(names) // TENSORS)])
    found: dict[str, Tensor] = {}
    for file in checkpoint.files:
        with safe_open(file, "pt") as opened:
            for name in wanted & set(opened.keys()):
                found[name] = _values(name, opened.get_slice(name))
    return dict(sorted(found.items()))


def _values(name: str, tensor: Any) -> Tensor:
    """Values at places drawn from the tensor's name, so that two checkpoints show the same ones."""
    shape = tensor.get_shape()
    if not shape or not all(shape):
        return torch.zeros(0)
    draw = random.Random(hashlib.sha256(name.encode()).digest())  # noqa: S311 - no secret
    if len(shape) == 1:
        flat = tensor[:].float()
        return flat[[draw.randrange(len(flat)) for _ in range(ROWS * COLUMNS)]]
    rows = []
    for _ in range(ROWS):
        row = draw.randrange(shape[0])
        flat = tensor[row : row + 1].float().flatten()
        rows.append(flat[[draw.randrange(len(flat)) for _ in range(COLUMNS)]])
    return torch.cat(rows)


def _packed(values: Tensor) -> str:
    return base64.b64encode(values.numpy().astype("<f4").tobytes()).decode()


def _unpacked(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.float32)
