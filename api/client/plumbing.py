"""From answers to objects and errors; no network here."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from api.client.errors import ApiError, ClientError
from api.schemas import Answer, DraftFile, Problem

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
"""Statuses that a job leaves only when somebody has it tried again."""

A = TypeVar("A", bound=Answer)


def parsed(model: type[A], response: httpx.Response) -> A:
    """The answer as an object; raises `ClientError` when it is none."""
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        raise ClientError(
            f"{response.request.url} did not answer like an Updraft service "
            f"(HTTP {response.status_code}); is another program on that port?"
        ) from error


def api_error(response: httpx.Response) -> ApiError:
    """The problem that an answer holds."""
    fallback = Problem(title=response.reason_phrase, status=response.status_code)
    try:
        return ApiError(Problem.model_validate(json.loads(response.content)))
    except (ValueError, ValidationError):
        return ApiError(fallback)


def given(**params: Any) -> dict[str, Any]:
    """The parameters that say something."""
    return {k: v for k, v in params.items() if v not in (None, "")}


def matching(etag: str | None) -> dict[str, str]:
    """The header that refuses a change of another version."""
    return {"if-match": etag} if etag else {}


def part(text: str) -> str:
    """A text as one segment of a path."""
    return quote(text, safe="")


class Arriving:
    """A file on its way: becomes `destination` only when its hash is right."""

    def __init__(self, file: DraftFile, destination: Path) -> None:
        self.file, self.destination = file, destination
        destination.parent.mkdir(parents=True, exist_ok=True)
        self.partial = destination.with_name(destination.name + ".part")
        self._digest = hashlib.sha256()
        self._out = self.partial.open("wb")

    def write(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        self._out.write(chunk)

    def arrived(self) -> None:
        """Put it in its place.

        Raises:
            ClientError: the bytes that came are not the ones the draft's manifest names.
        """
        self._out.close()
        found = self._digest.hexdigest()
        if found != self.file.sha256:
            raise ClientError(
                f"{self.file.path}: expected sha256 {self.file.sha256}, got {found}. "
                "The file was not kept; pull again, and look at the store if it repeats."
            )
        self.partial.replace(self.destination)

    def drop(self) -> None:
        """Leave nothing of it behind that did not arrive."""
        self._out.close()
        self.partial.unlink(missing_ok=True)
