"""A method's weights on disk.

EAGLE-3 drafts have a layout of their own, the one that engines load (`eagle3.export.official`).
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import nn


def save(path: Path, module: nn.Module) -> None:
    """Write all tensors of a module as safetensors."""
    tensors = {n: t.detach().cpu().contiguous() for n, t in module.state_dict().items()}
    save_file(tensors, path, metadata={"format": "pt"})


def load(path: Path, module: nn.Module) -> None:
    """Fill a module; a tensor that is missing, unexpected or of another shape is an error."""
    module.load_state_dict(load_file(path), strict=True)
