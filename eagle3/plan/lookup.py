"""A target's `config.json`, without its weights: from a directory, from the hub, or the demo's."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx

from eagle3.config import TargetRef

HUB = "https://huggingface.co"
LARGEST = 2**20
"""Bytes of a `config.json` that is read; real ones take a few kilobytes."""
TIMEOUT_S = 5.0


class Unreachable(Exception):
    """The config cannot be had here and now; the message says why."""


def read_config(
    ref: TargetRef,
    *,
    hub: str = HUB,
    token: str | None = None,
    offline: bool = False,
    transport: httpx.BaseTransport | None = None,
) -> dict[str, Any]:
    """The config of a target.

    Args:
        hub: address of the model hub.
        token: for gated and private hub models; sent to the hub alone.
        offline: do not ask the hub.
        transport: replaces the network, for tests.

    Raises:
        Unreachable: what the reference names is not there, cannot be asked, or is not JSON; or a
            kind of reference whose config comes only with the weights.
    """
    match ref.kind:
        case "demo":
            text = resources.files("eagle3.plan").joinpath("demo.json").read_text()
        case "file":
            text = _from_directory(Path(ref.location))
        case "hub" if offline:
            raise Unreachable(f"{ref}: the hub is not asked, as the settings say (offline)")
        case "hub":
            text = _from_hub(ref, hub, token, transport)
        case _:
            raise Unreachable(f"{ref}: its sizes are read when `resolve` has fetched it")
    try:
        found = json.loads(text)
    except ValueError:
        raise Unreachable(f"{ref}: its config.json is not JSON") from None
    if not isinstance(found, dict):
        raise Unreachable(f"{ref}: its config.json is not a JSON object")
    return found


def _from_directory(folder: Path) -> str:
    path = folder / "config.json"
    try:
        with path.open("rb") as f:
            return f.read(LARGEST).decode()
    except UnicodeDecodeError:
        raise Unreachable(f"{path} is not text") from None
    except OSError as e:
        raise Unreachable(f"{path}: {e.strerror}") from None


def _from_hub(
    ref: TargetRef, hub: str, token: str | None, transport: httpx.BaseTransport | None
) -> str:
    revision = quote(ref.revision or "main", safe="")
    url = f"{hub.rstrip('/')}/{ref.location}/resolve/{revision}/config.json"
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(
            timeout=TIMEOUT_S, transport=transport, follow_redirects=True, headers=headers
        ) as client:
            answer = client.get(url)
    except httpx.TransportError as e:
        raise Unreachable(f"{ref}: the hub cannot be reached ({type(e).__name__})") from None
    why = {
        401: "is gated, private or not there: the hub wants a token that may read it (HF_TOKEN)",
        403: "is gated: the token's account must be let in by its owner first",
        404: "has no such revision, or no config.json",
    }
    if answer.status_code != httpx.codes.OK:
        said = why.get(answer.status_code, f"cannot be read: the hub answered {answer.status_code}")
        raise Unreachable(f"{ref} {said}")
    if len(answer.content) > LARGEST:
        raise Unreachable(f"{ref}: its config.json is larger than 1 MiB")
    return answer.text
