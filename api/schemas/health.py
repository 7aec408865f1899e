"""What the probes answer."""

from __future__ import annotations

from api.schemas.base import Answer


class Health(Answer):
    """The process answers."""

    status: str = "ok"
    service: str = "updraft"
    version: str


class Readiness(Answer):
    """Whether what the service leans on answers, part by part."""

    status: str
    """`ok`; `degraded`: jobs are taken in and will wait; or `unavailable`."""
    checks: dict[str, str]
    """`ok`, or what is wrong, for each of db, store, broker and relay."""
