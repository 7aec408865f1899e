"""A stage sees the secret that it needs and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3.config import STAGES
from eagle3.data.engines.client import API_KEY
from jobs.settings import Settings
from workers.environment import child_environment


def test_regenerate_alone_gets_the_key_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(API_KEY, "from outside")
    settings = Settings(_env_file=None, home=tmp_path, engine_api_key="sesame")
    keys = {stage: child_environment(settings, stage).get(API_KEY) for stage in STAGES}
    assert keys.pop("regenerate") == "sesame"
    assert set(keys.values()) == {None}
    assert "sesame" not in repr(settings)
