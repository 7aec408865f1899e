"""Settings refuse what is unsafe, and what is generated from code is current."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from jobs.db import Database
from jobs.errors import Invalid, Unauthorized
from jobs.generate import generated
from jobs.keys import authenticate, create_key, list_keys, note_use, revoke_key, use_is_noted
from jobs.logs import JsonFormatter
from tests.jobs.conftest import Clock
from tests.settings import settings_of

FULL: dict[str, Any] = {
    "mode": "full",
    "api_key_pepper": "p" * 32,
    "database_url": "postgresql://db/updraft",
    "broker_url": "redis://redis/0",
    "store_url": "s3://bucket/updraft",
}
PEPPER = SecretStr("p" * 32)


def test_embedded_derives_everything_from_home(tmp_path: Path) -> None:
    settings = settings_of(home=tmp_path)
    assert settings.database_url == f"sqlite:///{tmp_path}/updraft.db"
    assert settings.store_url == f"file://{tmp_path}/store"
    assert settings.runs_dir == tmp_path / "runs"
    assert settings.mlflow_tracking_uri == "http://127.0.0.1:8301"
    assert (settings.lease_seconds, settings.sweep_seconds) == (30, 2)


def test_full_mode_keeps_the_pace_of_a_cluster() -> None:
    settings = settings_of(**FULL)
    assert (settings.lease_seconds, settings.heartbeat_seconds) == (90, 20)
    assert settings.upload_checkpoints


@pytest.mark.parametrize("name", ["api_key_pepper", "database_url", "broker_url", "store_url"])
def test_full_mode_refuses_to_start_without(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        settings_of(**{k: v for k, v in FULL.items() if k != name})


def test_refusals() -> None:
    with pytest.raises(ValidationError, match="loopback"):
        settings_of(host="0.0.0.0")  # noqa: S104 - refused
    with pytest.raises(ValidationError, match="half"):
        settings_of(lease_seconds=10, heartbeat_seconds=6)
    with pytest.raises(ValidationError, match="api_key_pepper"):
        settings_of(**{**FULL, "api_key_pepper": "short"})


def test_a_refusal_shows_no_secret() -> None:
    with pytest.raises(ValidationError) as refused:
        settings_of(mode="full", api_key_pepper="short-one", s3_secret_key="s3-secret")
    assert "short-one" not in str(refused.value)
    assert "s3-secret" not in str(refused.value)


def test_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UPDRAFT_HOME", str(tmp_path))
    monkeypatch.setenv("UPDRAFT_S3_ALLOWED", '["s3://b/p"]')
    monkeypatch.setenv("UPDRAFT_HUB_TOKEN", "hf_secretsecret")
    settings = settings_of()
    assert settings.s3_allowed == ("s3://b/p",)
    assert "hf_secret" not in repr(settings)


@pytest.mark.parametrize("path", list(generated()), ids=lambda p: p.name)
def test_generated_files_are_current(path: Path) -> None:
    assert path.read_text() == generated()[path], "run: python -m jobs.generate"


def test_logs_hold_no_secret() -> None:
    text = "hf_abcdefghijkl redis://user:pass@host X-Amz-Signature=abc123 Bearer token-value"
    line = JsonFormatter().format(logging.makeLogRecord({"msg": text, "levelname": "INFO"}))
    for secret in ("abcdefghijkl", "user:pass", "abc123", "token-value"):
        assert secret not in line


class TestKeys:
    def test_a_key_is_kept_as_its_hash_alone(self, db: Database, clock: Clock) -> None:
        with db.write() as s:
            row, token = create_key(s, "ci", ["jobs:write"], pepper=PEPPER, now=clock.now)
        assert token.startswith("upd_")
        assert token not in (row.hash, row.hint)
        with db.write() as s:
            found = authenticate(s, token, pepper=PEPPER, now=clock.now)
            assert (found.id, found.scopes) == (row.id, ["jobs:write"])
            assert [k.id for k in list_keys(s)] == [row.id]

    def test_its_use_is_noted_once_a_minute(self, db: Database, clock: Clock) -> None:
        with db.write() as s:
            row, token = create_key(s, "ci", [], pepper=PEPPER, now=clock.now)
            assert not use_is_noted(row, clock.now)
            note_use(s, row, clock.now)
        with db.read() as s:
            found = authenticate(s, token, pepper=PEPPER, now=clock.now)
        assert found.last_used_at == clock.now
        assert use_is_noted(found, clock.forward(60))
        assert not use_is_noted(found, clock.forward(1))

    def test_what_is_refused(self, db: Database, clock: Clock) -> None:
        with db.write() as s:
            row, token = create_key(s, "ci", [], pepper=PEPPER, now=clock.now)
            _, short = create_key(
                s, "short", [], pepper=PEPPER, now=clock.now, expires_at=clock.now
            )
            for bad in ("", "upd_", token[:-1] + "!", token[:-1], short, "upd_" + "a" * 46):
                with pytest.raises(Unauthorized):
                    authenticate(s, bad, pepper=PEPPER, now=clock.now)
            with pytest.raises(Unauthorized):
                authenticate(s, token, pepper=SecretStr("q" * 32), now=clock.now)
            revoke_key(s, row.id, now=clock.now)
            with pytest.raises(Unauthorized):
                authenticate(s, token, pepper=PEPPER, now=clock.now)
            with pytest.raises(Invalid, match="unknown scope"):
                create_key(s, "x", ["root"], pepper=PEPPER, now=clock.now)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_key_pepper", "changeme" * 4),
        ("api_key_pepper", "change-me-change-me-change-me-change-me"),
        ("database_url", "postgresql://updraft:updraft@db/updraft"),
        ("broker_url", "redis://:password@broker/0"),
        ("s3_secret_key", "minioadmin"),
    ],
)
def test_full_mode_refuses_secrets_that_everybody_knows(name: str, value: str) -> None:
    with pytest.raises(ValidationError, match=f"{name}: its secret") as refused:
        settings_of(**{**FULL, name: value})
    assert value not in str(refused.value)


@pytest.mark.parametrize("url", ["postgresql://u@/db?host=/run/pg", "postgresql://u:@/db?host=/pg"])
def test_full_mode_takes_a_database_that_knows_its_clients_without_a_password(url: str) -> None:
    assert settings_of(**{**FULL, "database_url": url}).database_url == url


def test_embedded_mode_has_no_secrets_to_refuse() -> None:
    settings_of(s3_secret_key="minioadmin")


def test_versions_are_looked_for_while_it_is_remembered_which_were_attached() -> None:
    assert settings_of(mlflow_hook_hours=48, idempotency_days=2).mlflow_hook_hours == 48
    with pytest.raises(ValidationError, match="attached again"):
        settings_of(mlflow_hook_hours=49, idempotency_days=2)
