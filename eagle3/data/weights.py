"""Checkpoint files on disk: are they safe, whole and of one piece? Reads headers, never tensors."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from eagle3.errors import BadInput
from eagle3.run import sha256_file

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000
"""Bytes; the format's own limit (safetensors 0.8)."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
AGAIN = "fetch or copy the target again"


@dataclass(frozen=True)
class Tensor:
    """A tensor as a header describes it."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """The safetensors files of a target, checked."""

    files: list[Path]
    tensors: dict[str, Tensor]

    @property
    def parameters(self) -> int:
        return sum(prod(t.shape) for t in self.tensors.values())

    @property
    def dtype(self) -> str:
        """The type that holds most elements, in torch's name."""
        count: Counter[str] = Counter()
        for tensor in self.tensors.values():
            count[tensor.dtype] += prod(tensor.shape)
        names = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
        most = count.most_common(1)[0][0]
        return names.get(most, most.lower())

    def sha256(self) -> str:
        """Hash over the names and contents of all files."""
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.name} {sha256_file(file)}\n".encode())
        return digest.hexdigest()


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read all headers of a target's weights.

    Raises:
        BadInput: no safetensors, or a file is cut short, damaged, or not what the index says.
    """
    files = _files(folder)
    tensors: dict[str, Tensor] = {}
    where: dict[str, str] = {}
    for file in files:
        for name, tensor in read_header(file).items():
            if name in tensors:
                raise BadInput(f"{file.name} and {where[name]} both hold the tensor {name}", AGAIN)
            tensors[name], where[name] = tensor, file.name
    for name, file_name in ({} if files == [folder / SINGLE] else _weight_map(folder)).items():
        if where.get(name) != file_name:
            raise BadInput(f"{INDEX} says that {file_name} holds {name}; it does not", AGAIN)
    return Checkpoint(files, tensors)


def read_header(file: Path) -> dict[str, Tensor]:
    """Names, types and shapes of a safetensors file, whose size must be what the header says.

    Raises:
        BadInput: the file is cut short or damaged.
    """
    size = file.stat().st_size
    with file.open("rb") as f:
        head = int.from_bytes(f.read(8), "little")
        if size < 8 or head > min(MAX_HEADER, size - 8):
            raise BadInput(
                f"{file.name} is not a whole safetensors file: {size:,} bytes, its header alone "
                f"needs {head + 8:,}",
                AGAIN,
            )
        try:
            header: dict[str, Any] = json.loads(f.read(head))
            header.pop("__metadata__", None)
            tensors = {k: Tensor(v["dtype"], tuple(v["shape"])) for k, v in header.items()}
            end = max((v["data_offsets"][1] for v in header.values()), default=0)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise BadInput(f"the header of {file.name} is damaged", AGAIN) from None
    if 8 + head + end != size:
        state = "cut short" if size < 8 + head + end else "longer than it should be"
        raise BadInput(
            f"{file.name} is {state}: {size:,} bytes, expected {8 + head + end:,}", AGAIN
        )
    return tensors


def _files(folder: Path) -> list[Path]:
    """The files that transformers loads: one of this name, or else those of the index."""
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    files = sorted(folder / f for f in set(_weight_map(folder).values()))
    for file in files:
        if file.parent != folder or not file.is_file():
            raise BadInput(f"{INDEX} names {file.name}, which is not there", AGAIN)
    if files:
        return files
    pickles = sorted(p.name for pattern in PICKLES for p in folder.glob(pattern))
    if pickles:
        raise BadInput(
            f"the target's weights are pickles ({pickles[0]}): loading a pickle runs its code",
            "convert the checkpoint to safetensors",
        )
    raise BadInput(f"{folder} holds no weights", f"expected {SINGLE}, or {INDEX} and its files")


def _weight_map(folder: Path) -> dict[str, str]:
    path = folder / INDEX
    if not path.is_file():
        return {}
    try:
        return {str(k): str(v) for k, v in json.loads(path.read_text())["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{INDEX} is damaged", AGAIN) from None
