"""A target and a draft in their directories, checked before an engine gets them.

Engines load a draft with a tensor missing, or of another target, and then draft badly without a
word; so each of them starts here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3.errors import BadInput
from eagle3.export import fits
from eagle3.export.given import Given
from eagle3.export.official import Stored
from eagle3.load import load_config


def target_config(target: Path) -> Any:
    """The text config of a target.

    Raises:
        BadInput: the directory has none that transformers reads.
    """
    try:
        return load_config(target).get_text_config()
    except (OSError, ValueError) as e:
        first = str(e).splitlines()[0]
        raise BadInput(
            f"{target} is no target: {first}", "name a directory as transformers saves it"
        ) from None


def read_draft(draft: Path, target: Path) -> Stored:
    """A draft of the official layout: every tensor, its shape, the maps, and the target's sizes.

    Raises:
        BadInput: what is wrong, tensor by tensor.
    """
    given = Given(
        draft,
        "draft",
        "name a directory that eagle3 export wrote, in the official layout",
        "name the draft's own target",
    )
    return given.read(target_config(target))


def fitting_draft(draft: Path, target: Path, engine: str) -> Stored:
    """A draft as `read_draft`, that this engine loads and drafts well with.

    Raises:
        BadInput: also where it has what the engine does not support or ignores.
    """
    config, stored = target_config(target), read_draft(draft, target)
    fits.check(stored.config, engine, config, config.num_hidden_layers)
    return stored
