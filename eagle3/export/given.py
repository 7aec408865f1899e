"""A draft in a directory that somebody names, read for one target: says what is wrong or differs.

A draft's weights mean something for one target, one set of captured layers and one draft
vocabulary; where any of these differs it is refused, never fitted by force.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from eagle3.draft import Draft, DraftConfig
from eagle3.errors import BadInput
from eagle3.export import official
from eagle3.export.official import Stored
from eagle3.run import Context
from eagle3.target import Target

Layers = tuple[int, int, int]


@dataclass(frozen=True)
class Given:
    """Such a directory, and how to speak of it."""

    folder: Path
    name: str
    """How it was named: a recipe's key, a stage's output."""
    unreadable: str
    """What to do where it is no draft."""
    differs: str
    """What to do where it is one for another target."""

    def check(self, hidden_size: int, vocab_size: int, num_layers: int, layers: Layers) -> None:
        """Compare its config with a target's sizes and captured layers; reads no weights.

        Raises:
            BadInput: it is no such draft, or not one for this target; says what differs.
        """
        with self._explained():
            config = official.read_config(self.folder, num_layers)
        self._compare(config, hidden_size, vocab_size, layers)

    def read(self, target: Any) -> Stored:
        """All of it, whichever layers of the target it captures.

        Args:
            target: the target's text config.

        Raises:
            BadInput: as `load`.
        """
        with self._explained():
            stored = official.read(self.folder, target.num_hidden_layers)
        config = stored.config
        self._compare(config, target.hidden_size, target.vocab_size, config.capture_layers)
        return stored

    def _compare(
        self, config: DraftConfig, hidden_size: int, vocab_size: int, layers: Layers
    ) -> None:
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
                f"{self.name}: {self.folder} is a draft for another target: {'; '.join(differing)}",
                self.differs,
            )

    def load(self, target: Target, layers: Layers) -> Draft:
        """The draft, in the type of the target's embedding.

        Raises:
            BadInput: as `check`; or a tensor is missing, unexpected or of another shape.
        """
        self.check(target.hidden_size, target.vocab_size, target.num_layers, layers)
        with self._explained():
            return official.load(self.folder, target.embed.weight.detach(), target.num_layers)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except KeyError as e:
            text = f"{self.folder / 'config.json'} lacks {e}"
        except FileNotFoundError as e:
            text = f"{e.filename or e} does not exist"
        except (json.JSONDecodeError, SafetensorError) as e:
            text = f"{self.folder} cannot be read: {e}"
        except ValueError as e:
            text = str(e)
        else:
            return
        raise BadInput(f"{self.name}: {text}", self.unreadable)


def exported(ctx: Context, target: Target) -> Draft:
    """What the stage `export` left for this target.

    Raises:
        BadInput: as `Given.load`.
    """
    again = f"it was changed by hand, or the target has moved on: eagle3 run {ctx.run}"
    folder = ctx.inputs["export"] / "draft"
    return Given(folder, "the exported draft", again, again).load(target, target.capture_layers)
