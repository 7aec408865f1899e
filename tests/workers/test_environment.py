"""A stage sees the secret that it needs and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3.config import STAGES
from eagle3.data.engines.client import API_KEY
from tests.settings import settings_of
from workers.environment import child_environment


def test_regenerate_alone_gets_the_key_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY, "from outside")
    settings = settings_of(home=tmp_path, engine_api_key="sesame")
    keys = {stage: child_environment(settings, stage).get(API_KEY) for stage in STAGES}
    assert keys.pop("regenerate") == "sesame"
    assert set(keys.values()) == {None}
    assert "sesame" not in repr(settings)


SECRETS = (
    *("UPDRAFT_API_KEY_PEPPER", "UPDRAFT_DATABASE_URL", "UPDRAFT_BROKER_URL", "PGPASSWORD"),
    *("UPDRAFT_S3_SECRET_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN"),
    *("MLFLOW_TRACKING_PASSWORD", "OTEL_EXPORTER_OTLP_HEADERS", "UPDRAFT_HUB_TOKEN", "HF_TOKEN"),
    "UPDRAFT_MLFLOW_HOOK_SECRET",
)


@pytest.mark.parametrize("stage", STAGES)
def test_no_secret_of_the_worker_is_passed_on(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(home=tmp_path)
    for name in SECRETS:
        monkeypatch.setenv(name, "sesame")
    env = child_environment(settings, stage)
    assert "sesame" not in env.values()
    assert not env.keys() & set(SECRETS)
