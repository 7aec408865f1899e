"""How the CLI speaks: results on stdout, everything said along the way on stderr."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any

import httpx
import typer
from pydantic import BaseModel
from rich.console import Console

from api.client import Client

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


class Exit(IntEnum):
    """Exit codes; docs/cli.md explains them."""

    OK = 0
    UNEXPECTED = 1
    BAD_INPUT = 2
    UNREACHABLE = 3
    JOB_FAILED = 4
    JOB_CANCELLED = 5
    TIMEOUT = 6
    GATE = 7
    INTERRUPTED = 130


class Fail(Exception):
    """Ends a command: what went wrong, what to do, and the exit code."""

    def __init__(self, message: str, hint: str = "", code: IntEnum = Exit.UNEXPECTED) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


@dataclass(frozen=True)
class Connection:
    """Where the service is, as the global options say."""

    url: str
    api_key: str | None = None
    transport: httpx.BaseTransport | None = None
    """Replaces the network, for tests."""

    def client(self) -> Client:
        return Client(self.url, api_key=self.api_key, transport=self.transport)


JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
WaitFlag = Annotated[
    bool, typer.Option("--wait", help="Wait for the end; the exit code tells how it ended.")
]
Timeout = Annotated[float | None, typer.Option(help="Seconds to wait at most; the job goes on.")]


def connection(ctx: typer.Context) -> Connection:
    """The connection that the root command made of its options."""
    found = ctx.find_object(Connection)
    assert found is not None  # noqa: S101  the root callback always sets it
    return found


def say(message: str) -> None:
    """One line along the way, plainly."""
    err.print(message, style="dim", markup=False, soft_wrap=True)


def print_json(value: BaseModel | dict[str, Any] | list[Any]) -> None:
    """One JSON document on stdout, not wrapped or coloured."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    typer.echo(json.dumps(plain, indent=2))


def print_json_line(value: BaseModel | dict[str, Any]) -> None:
    """One JSON document on one line of stdout, for streams."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    typer.echo(json.dumps(plain))
