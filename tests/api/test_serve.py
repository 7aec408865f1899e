"""`updraft serve` fetches a draft's files and becomes `eagle3 serve`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from api.cli import serve
from api.cli.console import Exit
from api.state import State
from jobs.models import Draft
from tests.api.conftest import Ran

Run = Callable[..., Ran]


@dataclass
class Became:
    """What the command would have turned into."""

    command: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Became:
    found = Became()

    def exec_(file: str, command: list[str], environment: dict[str, str]) -> None:
        assert file == command[0]
        found.command, found.environment = command, environment

    monkeypatch.setattr(os, "execvpe", exec_)
    monkeypatch.setenv("UPDRAFT_CACHE", str(tmp_path / "cache"))
    return found


def of(state: State, **values: Any) -> None:
    with state.db.write() as session:
        session.execute(update(Draft).values(**values))


@pytest.mark.usefixtures("succeeded")
def test_the_files_are_fetched_once_and_the_server_takes_over(
    run: Run, became: Became, tmp_path: Path
) -> None:
    ran = run("serve", "eagle3--demo", "--engine", "llamacpp", "--port", "8123", "--tokens", "2")
    assert ran.code == Exit.OK, ran.err
    assert "draft/model.safetensors" in ran.err
    [folder] = (tmp_path / "cache" / "drafts").iterdir()
    assert (folder / "draft" / "config.json").is_file()
    served = ["serve", "demo", str(folder), "--engine", "llamacpp"]
    assert became.command[-9:] == [*served, "--port", "8123", "--tokens", "2"]
    assert became.environment["UPDRAFT_CACHE"] == str(tmp_path / "cache")
    assert "draft/model.safetensors" not in run("serve", "dft_01test").err


@pytest.mark.usefixtures("succeeded")
def test_a_file_that_changed_on_disk_is_fetched_again(
    run: Run, became: Became, tmp_path: Path
) -> None:
    run("serve", "dft_01test")
    [weights] = (tmp_path / "cache").rglob("model.safetensors")
    before = weights.read_bytes()
    weights.write_bytes(b"other")
    run("serve", "dft_01test")
    assert weights.read_bytes() == before


@pytest.mark.usefixtures("succeeded")
def test_a_hub_target_is_served_at_the_drafts_own_commit(
    run: Run, became: Became, state: State
) -> None:
    of(state, target="org/name@main", target_resolved="org/name@" + "a" * 40)
    run("serve", "dft_01test")
    assert became.command[-4] == "org/name@" + "a" * 40


@pytest.mark.usefixtures("succeeded")
def test_a_target_that_only_workers_fetch(
    run: Run, became: Became, state: State, tmp_path: Path
) -> None:
    of(state, target="s3://bucket/prefix")
    ran = run("serve", "dft_01test")
    assert (ran.code, "--target DIR" in ran.err) == (Exit.BAD_INPUT, True)
    assert not became.command
    run("serve", "dft_01test", "--target", str(tmp_path))
    assert became.command[-4] == str(tmp_path)


@pytest.mark.usefixtures("succeeded")
def test_a_deprecated_draft_is_served_with_a_warning(
    run: Run, became: Became, state: State
) -> None:
    with state.db.write() as session:
        draft = session.get_one(Draft, "dft_01test")
        draft.deprecated_at, draft.deprecation = draft.created_at, "a better one is there"
    assert "a better one is there" in run("serve", "dft_01test").err
    assert became.command


@pytest.mark.usefixtures("succeeded")
def test_what_cannot_be_served(run: Run, became: Became, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = run("serve", "dft_01test", "--engine", "native")
    assert (wrong.code, "llamacpp" in wrong.err) == (Exit.BAD_INPUT, True)
    assert run("serve", "acme/none").code == Exit.BAD_INPUT
    monkeypatch.setattr(serve, "find_spec", lambda name: None)
    lacking = run("serve", "dft_01test")
    assert (lacking.code, "updraft[worker]" in lacking.err) == (Exit.BAD_INPUT, True)
    assert not became.command
