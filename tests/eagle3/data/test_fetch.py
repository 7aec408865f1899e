from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from eagle3.data import fetch, resolve
from eagle3.data.fetch import hub_errors
from eagle3.errors import BadInput, StageError, TargetUnavailable
from tests.eagle3.data.conftest import MakeRun
from tests.tiny import Tiny

TOKEN = "hf_secretsecret"


def answer(status: int) -> httpx2.Response:
    request = httpx2.Request(
        "GET", "https://hub/api/models/a/b", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    return httpx2.Response(status, request=request)


@pytest.mark.parametrize(
    ("error", "kind", "message", "hint"),
    [
        (
            GatedRepoError("x", response=answer(403)),
            TargetUnavailable,
            "is gated",
            "ask for access",
        ),
        (
            RepositoryNotFoundError("x", response=answer(404)),
            BadInput,
            "does not exist",
            "check the name",
        ),
        (
            RevisionNotFoundError("x", response=answer(404)),
            BadInput,
            "no such revision",
            "a commit",
        ),
        (HfHubHTTPError(TOKEN, response=answer(401)), TargetUnavailable, "(401)", "HF_TOKEN"),
        (HfHubHTTPError(TOKEN, response=answer(403)), TargetUnavailable, "(403)", "HF_TOKEN"),
        (HfHubHTTPError(TOKEN, response=answer(503)), TargetUnavailable, "503", "try again"),
        (OfflineModeIsEnabled("x"), TargetUnavailable, "cannot be reached", "file:///abs/dir"),
        (httpx2.ConnectError("x"), TargetUnavailable, "ConnectError", "check the network"),
    ],
)
def test_hub_errors_say_what_to_do_and_hold_no_token(
    error: Exception, kind: type[StageError], message: str, hint: str
) -> None:
    with pytest.raises(StageError) as e, hub_errors("the target a/b"):
        raise error
    assert type(e.value) is kind
    assert message in str(e.value)
    assert hint in e.value.hint
    assert TOKEN not in str(e.value) + e.value.hint
    assert e.value.__suppress_context__


def test_a_hub_that_cannot_be_reached_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the hub's own client, so that what it raises is what is caught."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(TargetUnavailable, match=r"cannot be reached \(ConnectError\)"):
        fetch.pin("org/name", None)


def test_a_hub_target_is_pinned_and_checked_before_its_weights_are_fetched(
    make_run: MakeRun, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "a" * 40
    fetched: list[object] = []

    def small(*_: object) -> Path:
        fetched.append("small")
        return tiny.path

    def everything(*asked: object) -> Path:
        fetched.append(asked)
        return tiny.path

    monkeypatch.setattr(resolve, "pin", lambda repo, rev: (commit, ["model.safetensors"]))
    monkeypatch.setattr(resolve, "fetch_small", small)
    monkeypatch.setattr(resolve, "fetch_all", everything)
    assert make_run(target="org/name@main").run("resolve")["resolved"] == f"org/name@{commit}"
    assert fetched == ["small", ("org/name", commit)]


def test_a_hub_target_of_pickles_is_refused_by_its_listing(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "pin", lambda *_: ("a" * 40, ["pytorch_model.bin"]))
    with pytest.raises(BadInput, match="holds no safetensors"):
        make_run(target="org/name").run("resolve")


def test_patterns_let_no_pickle_and_no_code_in() -> None:
    assert not {"*.bin", "*.pt", "*.py", "*"} & set(fetch.PATTERNS)
