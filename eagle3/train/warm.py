"""Going on from a draft that exists: its vocabulary and sizes are kept, its weights are the start.

A draft's weights mean something for one target, one set of captured layers and one draft
vocabulary; where any of these differs it is refused, never fitted by force.
"""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError

from eagle3.data.source import FeatureSource
from eagle3.draft import Draft, DraftConfig
from eagle3.errors import BadInput
from eagle3.export import official
from eagle3.run import sha256_file
from eagle3.target import Target


def warm_draft(folder: Path, target: Target, source: FeatureSource) -> Draft:
    """The draft in a directory of the official layout, in float32, ready to train.

    Raises:
        BadInput: it is no such draft, or not one for this target; says what differs.
    """
    hint = "train.start_from names a directory with config.json and model.safetensors"
    if not folder.is_dir():
        raise BadInput(f"train.start_from: {folder} is not a directory", hint)
    try:
        config = official.read_config(folder, target.num_layers)
        _check(config, folder, target, source)
        draft = official.load(folder, target.embed.weight.detach(), target.num_layers)
    except KeyError as e:
        raise BadInput(f"train.start_from: {folder / 'config.json'} lacks {e}", hint) from None
    except FileNotFoundError as e:
        raise BadInput(f"train.start_from: {e.filename} does not exist", hint) from None
    except (json.JSONDecodeError, SafetensorError) as e:
        raise BadInput(f"train.start_from: {folder} cannot be read: {e}", hint) from None
    except ValueError as e:
        raise BadInput(f"train.start_from: {e}", hint) from None
    return draft.float().requires_grad_(True).train()


def draft_content(folder: Path) -> list[str]:
    """Hashes of a draft's files, of those that are there."""
    files = [folder / "config.json", folder / official.WEIGHTS]
    return [sha256_file(path) for path in files if path.is_file()]


def _check(config: DraftConfig, folder: Path, target: Target, source: FeatureSource) -> None:
    wanted = {
        "hidden size": (config.hidden_size, target.hidden_size),
        "vocabulary": (config.vocab_size, target.vocab_size),
        "captured layers": (config.capture_layers, source.capture_layers),
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
