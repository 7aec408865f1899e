"""What stands under deploy/ speaks of things that exist: figures, settings, files, modules."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as parse

from jobs.base import Base
from jobs.db import Database
from jobs.figures import Figures
from jobs.settings import Settings
from tests.jobs.conftest import Clock
from tests.jobs.world import World
from tests.settings import settings_of

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
NAME = re.compile(r"\bupdraft_[a-z_]+\b")
LABELS = re.compile(r"\b(?:by \(([a-z, ]+)\)|(\w+)(?:=~|!~|!=|=)\")")


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Every figure that a service which has seen everything exposes, with its labels."""
    settings = settings_of(home=tmp_path_factory.mktemp("home"))
    db = Database(settings.database_url)
    Base.metadata.create_all(db.engine)
    world = World(db, settings, Clock())
    world.works("one", "gpu:h100")
    world.submit()
    world.finish(world.leased())
    world.leased()
    world.clock.forward(settings.lease_seconds + 1)
    world.sweep()
    world.submit()
    world.leased()
    world.submit()
    world.works("one", "gpu:h100")
    with db.read() as session:
        text = Figures(session, settings, world.clock.now).text().decode()
    db.close()
    found: dict[str, set[str]] = {}
    for family in parse(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> list[str]:
    alerts = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    dashboard = json.loads((DEPLOY / "grafana" / "updraft.json").read_text())
    rules = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    return rules + [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


@pytest.mark.parametrize("expression", expressions())
def test_figures_and_labels_exist(expression: str, exposed: dict[str, set[str]]) -> None:
    names = NAME.findall(expression)
    assert names
    assert set(names) <= set(exposed)
    labels = {
        label.strip()
        for several, one in LABELS.findall(expression)
        for label in (several or one).split(",")
    }
    assert labels <= set().union(*(exposed[name] for name in names))


def test_the_manual_lists_every_figure(exposed: dict[str, set[str]]) -> None:
    told = set(NAME.findall((ROOT / "docs" / "operations.md").read_text()))
    assert told == {re.sub(r"_(bucket|sum|count)$", "", name) for name in exposed}


def _compose() -> dict[str, Any]:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert isinstance(found, dict)
    return found


def test_settings_exist_and_suffice() -> None:
    for name, service in _compose()["services"].items():
        given = service.get("environment", {})
        ours = {k.removeprefix("UPDRAFT_").lower() for k in given if k.startswith("UPDRAFT_")}
        assert ours <= set(Settings.model_fields), name
        if ours:  # as the compose file has them, with the blanks filled in
            filled = {k: re.sub(r"\$\{\w+[^}]*\}", "x" * 32, v) for k, v in given.items() if v}
            values = {k.removeprefix("UPDRAFT_").lower(): v for k, v in filled.items()}
            values = {k: v for k, v in values.items() if k in Settings.model_fields}
            settings_of(**{**values, "store_url": "s3://bucket/updraft"})


def test_variables_are_in_the_example() -> None:
    example = set(
        re.findall(r"^(?:# )?([A-Z]\w+)=", (DEPLOY / "env.example").read_text(), re.MULTILINE)
    )
    text = (DEPLOY / "compose.yaml").read_text()
    used = set(re.findall(r"\$\{(\w+)|^ +([A-Z_0-9]+):(?: +#.*)?$", text, re.MULTILINE))
    used = {name for pair in used for name in pair if name}
    assert used - {"UPDRAFT_S3_REGION"} == example


def test_what_is_copied_and_run_exists() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    copied = [
        name
        for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    for module in ("api.app", "workers.app", "workers.relay"):
        assert importlib.util.find_spec(module)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
    builds = [s["build"]["target"] for s in _compose()["services"].values() if "build" in s]
    assert set(builds) <= stages
