"""The held-out prompts that benchmark and proof decode."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from eagle3.data.records import Response, read_records
from eagle3.errors import BadInput


@dataclass(frozen=True)
class HeldOut:
    """A prompt that no stage trained on, as token ids up to the first answer."""

    id: str
    ids: list[int]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(self.ids).encode()).hexdigest()


def heldout_prompts(responses: Path, count: int) -> list[HeldOut]:
    """The first `count` held-out prompts by id, a hash of their content; all where there are fewer.

    Training chooses its best checkpoint on the last ones by id.
    """
    found = _heldout(responses)[:count]
    return [HeldOut(r.id, r.ids[: r.spans[0][0]]) for r in found]


def heldout_answers(responses: Path, after: int, count: int) -> list[Response]:
    """Held-out answers behind the first `after` prompts, so that other ones choose than measure;
    the first ones where there are no others."""
    found = _heldout(responses)
    return (found[after:] or found)[:count]


def _heldout(responses: Path) -> list[Response]:
    found = [r for r in read_records(responses, Response) if r.split == "heldout"]
    if not found:
        raise BadInput("there are no held-out prompts", "mark some, or set prompts.heldout to 2+")
    return sorted(found, key=lambda response: response.id)
