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
    found = [
        HeldOut(r.id, r.ids[: r.spans[0][0]])
        for r in read_records(responses, Response)
        if r.split == "heldout"
    ]
    if not found:
        raise BadInput("there are no held-out prompts", "mark some, or set prompts.heldout to 2+")
    return sorted(found, key=lambda prompt: prompt.id)[:count]
