from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from api.cli import keys
from api.cli.console import Exit
from jobs.settings import Settings
from tests.api.conftest import PEPPER, Ran

Run = Callable[..., Ran]


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch, settings: Settings, full_web: TestClient) -> TestClient:
    """Full mode's rules on SQLite, for the command too."""
    found = settings.model_copy(update={"mode": "full", "api_key_pepper": PEPPER})
    monkeypatch.setattr(keys, "Settings", lambda: found)
    return full_web


def test_a_key_is_shown_once_works_and_is_revoked(run: Run, full: TestClient) -> None:
    made = run("keys", "create", "ci", "--days", "30")
    assert "not shown again" in made.err
    token = made.out.strip()
    headers = {"authorization": f"Bearer {token}"}
    assert full.get("/v1/jobs", headers=headers).status_code == 200
    listed = run("keys", "list", "--json").out
    assert token not in listed
    [key] = json.loads(listed)
    assert (key["name"], key["scopes"]) == ("ci", ["drafts:read", "jobs:read", "jobs:write"])
    assert key["last_used_at"]
    assert "ci" in run("keys", "list").out
    assert "revoked" in run("keys", "revoke", key["id"]).err
    assert full.get("/v1/jobs", headers=headers).status_code == 401


@pytest.mark.usefixtures("full")
def test_wrong_scopes_and_ids_are_refused(run: Run) -> None:
    for args in (["create", "x", "--scope", "everything"], ["revoke", "key_nope"]):
        ran = run("keys", *args)
        assert ran.code == Exit.BAD_INPUT, ran
        assert ran.out == ""
