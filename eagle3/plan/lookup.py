"""What can be known of a target and of prompt sets without fetching them: from small files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from eagle3.config import PromptRef, TargetRef

HUB = "https://huggingface.co"
LARGEST = 2**20
"""Bytes of an answer that is read; real configs take a few kilobytes."""
TIMEOUT_S = 5.0


class Unreachable(Exception):
    """What is wanted cannot be had here and now; the message says why."""


@dataclass(frozen=True)
class Hub:
    """The model hub, asked for small files alone.

    Args:
        token: for gated and private repositories; sent to the hub alone.
        offline: never ask.
        transport: replaces the network, for tests.
    """

    url: str = HUB
    token: str | None = None
    offline: bool = False
    transport: httpx.BaseTransport | None = None

    def get(self, what: str, path: str) -> Any:
        """A JSON object of the hub.

        Raises:
            Unreachable: it cannot be asked, or does not answer with one.
        """
        if self.offline:
            raise Unreachable(f"{what}: the hub is not asked (offline)")
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        try:
            with httpx.Client(
                timeout=TIMEOUT_S,
                transport=self.transport,
                follow_redirects=True,
                headers=headers,
            ) as client:
                answer = client.get(f"{self.url.rstrip('/')}/{path}")
        except httpx.TransportError as e:
            raise Unreachable(f"{what}: the hub cannot be reached ({type(e).__name__})") from None
        why = {
            401: "is gated, private or not there: the hub wants a token that may read it",
            403: "is gated: the token's account must be let in by its owner first",
            404: "has no such revision or file",
        }
        status = answer.status_code
        if status != httpx.codes.OK:
            said = why.get(status, f"cannot be read: the hub answered {status}")
            raise Unreachable(f"{what} {said}")
        return _object(what, answer.text)

    def config(self, ref: TargetRef) -> dict[str, Any]:
        """A model's `config.json`."""
        revision = quote(ref.revision or "main", safe="")
        found: dict[str, Any] = self.get(str(ref), f"{ref.location}/resolve/{revision}/config.json")
        return found

    def rows(self, ref: PromptRef) -> int:
        """Rows of a data set's split, as its card says; of a slice, at most.

        Raises:
            Unreachable: the hub cannot be asked, or the card does not say.
        """
        what = f"the data set {ref.location}"
        wanted, _, sliced = (ref.split or "train").partition("[")
        info = self.get(what, f"api/datasets/{ref.location}")
        found = [
            rows
            for name, split, rows in _splits(info)
            if split == wanted and ref.config in (None, name)
        ]
        most = _most(sliced, found[0] if found else None)
        if most is not None:
            return most
        raise Unreachable(f"{what} does not say how many rows its split {wanted} has")


def read_config(ref: TargetRef, hub: Hub | None = None) -> dict[str, Any]:
    """A target's `config.json`, without its weights.

    Raises:
        Unreachable: it is not there, cannot be asked for, or is not JSON; or a kind of reference
            whose config comes only with the weights.
    """
    match ref.kind:
        case "demo":
            return _object("demo", resources.files("eagle3.plan").joinpath("demo.json").read_text())
        case "file":
            return _from_directory(Path(ref.location))
        case "hub":
            return (hub or Hub()).config(ref)
        case _:
            raise Unreachable(f"{ref}: its sizes are read when `resolve` has fetched it")


def _from_directory(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        with path.open("rb") as f:
            text = f.read(LARGEST).decode()
    except UnicodeDecodeError:
        raise Unreachable(f"{path} is not text") from None
    except OSError as e:
        raise Unreachable(f"{path}: {e.strerror}") from None
    return _object(str(path), text)


def _object(what: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if len(text) <= LARGEST else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Unreachable(f"{what}: expected a small JSON object")
    return found


def _most(sliced: str, rows: int | None) -> int | None:
    """Rows of a slice at most, as in `10:68000]` or `:5%]`; None where `rows` is not known and it
    does not tell. A slice that counts from the end is taken for all."""
    found = re.fullmatch(r"(?:(\d+)%?)?:(\d+)(%?)\]", sliced)
    if found is None:
        return rows
    size = max(0, int(found[2]) - int(found[1] or 0))
    if found[3]:
        return None if rows is None else math.ceil(rows * size / 100)
    return size if rows is None else min(rows, size)


def _splits(info: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Configuration, split and rows, from a data set's card."""
    card = info.get("cardData")
    found = card.get("dataset_info") if isinstance(card, dict) else None
    for config in found if isinstance(found, list) else [found]:
        if not isinstance(config, dict):
            continue
        splits = config.get("splits")
        for split in splits if isinstance(splits, list) else []:
            rows = split.get("num_examples") if isinstance(split, dict) else None
            if isinstance(rows, int):
                yield str(config.get("config_name", "default")), str(split.get("name")), rows
