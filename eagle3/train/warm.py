"""Going on from a draft that exists: its vocabulary and sizes are kept, its weights are the start.

A draft's weights mean something for one target, one set of captured layers and one draft
vocabulary; where any of these differs it is refused, never fitted by force.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from eagle3.data.source import FeatureSource
from eagle3.draft import Draft
from eagle3.errors import BadInput
from eagle3.export import official
from eagle3.run import sha256_file
from eagle3.target import Target

HINT = "train.start_from names a directory with config.json and model.safetensors"


def warm_draft(folder: Path, target: Target, source: FeatureSource) -> Draft:
    """The draft in a directory of the official layout, in float32, ready to train.

    Raises:
        BadInput: it is no such draft, or not one for this target; says what differs.
    """
    layers = source.capture_layers
    check_draft(folder, target.hidden_size, target.vocab_size, target.num_layers, layers)
    with _explained(folder):
        draft = official.load(folder, target.embed.weight.detach(), target.num_layers)
    return draft.float().requires_grad_(True).train()


def check_draft(
    folder: Path, hidden_size: int, vocab_size: int, num_layers: int, layers: tuple[int, int, int]
) -> None:
    """Compare a draft's config with a target's sizes and captured layers; reads no weights.

    Raises:
        BadInput: as `warm_draft`.
    """
    if not folder.is_absolute():
        raise BadInput(
            f"train.start_from: {folder} is a registered draft, which a worker of the service "
            "brings",
            "without the service: updraft pull DRAFT DIR, and name DIR/draft",
        )
    if not folder.is_dir():
        raise BadInput(f"train.start_from: {folder} is not a directory", HINT)
    with _explained(folder):
        config = official.read_config(folder, num_layers)
    wanted = {
        "hidden size": (config.hidden_size, hidden_size),
        "vocabulary": (config.vocab_size, vocab_size),
        "captured layers": (config.capture_layers, layers),
    }
    differing = [
        f"{name} {there} where this target and its features have {here}"
        for name, (there, here) in wanted.items()
        if there != here
    ]
    if differing:
        raise BadInput(
            f"train.start_from: {folder} is a draft for another target: {'; '.join(differing)}",
            "start from a draft of this target, or set extract.capture_layers to the draft's",
        )


def draft_content(folder: Path) -> list[str]:
    """Hashes of a draft's files, of those that are there."""
    files = [folder / "config.json", folder / official.WEIGHTS]
    return [sha256_file(path) for path in files if path.is_file()]


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except KeyError as e:
        raise BadInput(f"train.start_from: {folder / 'config.json'} lacks {e}", HINT) from None
    except FileNotFoundError as e:
        raise BadInput(f"train.start_from: {e.filename} does not exist", HINT) from None
    except (json.JSONDecodeError, SafetensorError) as e:
        raise BadInput(f"train.start_from: {folder} cannot be read: {e}", HINT) from None
    except ValueError as e:
        raise BadInput(f"train.start_from: {e}", HINT) from None
