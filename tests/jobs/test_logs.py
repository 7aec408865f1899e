"""No secret reaches a log, and what is left of a line is still JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs import logs
from tests.settings import settings_of

SECRETS = [
    "hf_abcdefghijkl",
    "upd_0123456789abcdef",
    "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD=",
    "AKIAIOSFODNN7EXAMPLE",
    "sk-proj-abcdefghijklmnop",
]
SHOWN = [
    ("Authorization: Bearer {}", "0123-token.value"),
    ("authorization: basic {}", "dXNlcjpwYXNz"),
    ("https://s3/b/k?X-Amz-Signature={}&a=b", "5f2ac0ffee"),
    ("https://s3/b/k?X-Amz-Credential={}&a=b", "someone/2026/s3"),
    ("https://s3/b/k?AWSAccessKeyId=x&Signature={}", "sig4sig"),
    ("redis://:{}@host/0", "queue-pass"),
    ("postgresql://user:{}@host/db", "row-pass"),
    ("password={}", "opensesame"),
    ('{{"api_key": "{}"}}', "opensesame"),
    ("s3_secret_key='{}'", "opensesame"),
]


@pytest.fixture(autouse=True)
def _nothing_hidden() -> Iterator[None]:
    yield
    logs.hide([])


def line(message: str) -> str:
    return logs.JsonFormatter().format(logging.makeLogRecord({"msg": message, "level": 20}))


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_known_by_their_form(secret: str) -> None:
    text = line(f'got "{secret}" (quoted)')
    assert secret not in text
    assert json.loads(text)["message"] == 'got "[redacted]" (quoted)'


@pytest.mark.parametrize(("form", "secret"), SHOWN, ids=[form for form, _ in SHOWN])
def test_secrets_known_by_their_place(form: str, secret: str) -> None:
    assert secret not in logs.redact(form.format(secret))
    text = line(form.format(secret))
    assert secret not in text
    json.loads(text)


def test_what_is_no_secret_stays() -> None:
    told = "train: 512 tokens, token 7 of draft, key layers 2,15,27 at s3://bucket/jobs/job_1"
    assert logs.redact(told) == told


def test_this_deployments_secrets_go_by_their_value(tmp_path: Path) -> None:
    settings = settings_of(
        home=tmp_path,
        hub_token="plain-looking-words",
        database_url="postgresql://u:p%40ssw0rd@db/x",
    )
    logs.hide(logs.secrets_of(settings))
    assert logs.redact("sent plain-looking-words and p@ssw0rd") == "sent [redacted] and [redacted]"


def test_a_short_value_is_not_hidden() -> None:
    logs.hide(["key"])
    assert logs.redact("a key") == "a key"


def test_a_file_is_copied_without_secrets(tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(b'{"message": "hf_abcdefghijkl"}\n\xff plain\n')
    logs.redact_file(source, target)
    assert target.read_text() == '{"message": "[redacted]"}\n\ufffd plain\n'
