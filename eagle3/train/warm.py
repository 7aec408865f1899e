"""Going on from a draft: its vocabulary and sizes are kept, its weights are the start."""

from __future__ import annotations

from pathlib import Path

from eagle3.data.source import FeatureSource
from eagle3.draft import Draft
from eagle3.errors import BadInput
from eagle3.export import official
from eagle3.export.given import Given, Layers
from eagle3.run import sha256_file
from eagle3.target import Target

HINT = "train.start_from names a directory with config.json and model.safetensors"
ANOTHER = "start from a draft of this target, or set extract.capture_layers to the draft's"


def warm_draft(folder: Path, target: Target, source: FeatureSource) -> Draft:
    """The draft in a directory of the official layout, in float32, ready to train.

    Raises:
        BadInput: it is no such draft, or not one for this target; says what differs.
    """
    draft = _given(folder).load(target, source.capture_layers)
    return draft.float().requires_grad_(True).train()


def check_draft(
    folder: Path, hidden_size: int, vocab_size: int, num_layers: int, layers: Layers
) -> None:
    """Compare a draft's config with a target's sizes and captured layers; reads no weights.

    Raises:
        BadInput: as `warm_draft`.
    """
    _given(folder).check(hidden_size, vocab_size, num_layers, layers)


def _given(folder: Path) -> Given:
    if not folder.is_absolute():
        raise BadInput(
            f"train.start_from: {folder} is a registered draft, which a worker of the service "
            "brings",
            "without the service: updraft pull DRAFT DIR, and name DIR/draft",
        )
    if not folder.is_dir():
        raise BadInput(f"train.start_from: {folder} is not a directory", HINT)
    return Given(folder, "train.start_from", HINT, ANOTHER)


def draft_content(folder: Path) -> list[str]:
    """Hashes of a draft's files, of those that are there."""
    files = [folder / "config.json", folder / official.WEIGHTS]
    return [sha256_file(path) for path in files if path.is_file()]
