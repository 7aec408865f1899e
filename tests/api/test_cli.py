from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.cli.console import Exit
from api.client import Client
from api.state import State
from jobs.spec import JOB_TEMPLATE
from tests.api.conftest import Ran

Run = Callable[..., Ran]


def test_init_writes_a_file_that_submits(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    assert run("init", str(path)).code == Exit.OK
    assert path.read_text() == JOB_TEMPLATE
    again = run("init", str(path))
    assert (again.code, "exists" in again.err) == (Exit.BAD_INPUT, True)
    submitted = run("submit", "-f", str(path), "--json")
    assert submitted.code == Exit.OK
    assert json.loads(submitted.out)["target"] == "demo"


def test_options_win_over_the_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("target: demo\nrecipe: standard\nprompts: {source: ./p.jsonl}\n")
    args = ["--recipe", "quick", "--set", "train.epochs=2", "--set", "prove.prompts=4"]
    ran = run("submit", "-f", str(path), *args, "--label", "team=a", "--json")
    spec = json.loads(ran.out)["spec"]
    assert spec["recipe"] == "quick"
    assert spec["overrides"] == {"train": {"epochs": 2}, "prove": {"prompts": 4}}
    assert spec["labels"] == {"team": "a"}
    assert spec["prompts"]["source"] == str(tmp_path / "p.jsonl")


def test_submission_under_a_key_is_made_once(run: Run) -> None:
    args = ["submit", "--target", "demo", "--idempotency-key", "k"]
    first, again = run(*args), run(*args)
    assert first.out == again.out
    assert "with this idempotency key" in again.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["submit"], "--target"),
        (["submit", "--target", "../x"], "#/target"),
        (["submit", "--target", "demo", "--set", "train.nope=1"], "#/overrides/train/nope"),
        (["submit", "--target", "demo", "--set", "train.epochs"], "NAME=VALUE"),
        (["submit", "-f", "/nowhere/job.yaml"], "No such file"),
        (["submit", "--target", "demo", "--timeout", "1"], "--wait"),
        (["init", "/nowhere/job.yaml"], "No such file"),
        (["show", "job_nope"], "updraft jobs"),
        (["jobs", "--status", "asleep"], "query/status"),
        (["pull", "acme/none", "out"], "updraft drafts"),
        (["keys", "list"], "UPDRAFT_MODE=full"),
        (["up", "--only", "kernel"], "expected mlflow, api, relay, worker"),
        (["demo", "--profile", "nope"], "quick"),
        (["nonsense"], "No such command"),
    ],
)
def test_bad_input_says_what_is_expected(run: Run, args: list[str], says: str) -> None:
    ran = run(*args)
    assert ran.code == Exit.BAD_INPUT, ran
    assert says in ran.err.replace("\n", " ")
    assert ran.out == ""


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "", "\x00"])
def test_a_file_that_is_no_job(run: Run, tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    ran = run("submit", "-f", str(path))
    assert (ran.code, str(path) in ran.err.replace("\n", "")) == (Exit.BAD_INPUT, True)


def test_a_job_is_shown(run: Run, training: str) -> None:
    text = run("show", training).out
    for part in (training, "running", "120/194 step", "ETA 1m 32s", "loss 2.310", "length 1.42"):
        assert part in text
    assert json.loads(run("show", training, "--json").out)["id"] == training
    assert training in run("jobs").out
    assert json.loads(run("jobs", "--json").out)["data"][0]["id"] == training


def test_lists_that_are_empty_say_how_to_begin(run: Run) -> None:
    assert "updraft submit" in run("jobs").err
    assert "job that succeeds" in run("drafts").err


def test_logs(run: Run, succeeded: str) -> None:
    assert "done" in run("logs", succeeded).out
    lines = run("logs", "-f", succeeded, "--after", "1", "--json").out.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["job.succeeded"]


def test_report(run: Run, succeeded: str) -> None:
    assert run("show", succeeded, "--report").out.startswith("# Report")


def test_cancel(run: Run, queued: str) -> None:
    assert "cancelled" in run("cancel", queued).err
    assert json.loads(run("cancel", queued, "--json").out)["status"] == "cancelled"


@pytest.mark.usefixtures("succeeded")
@pytest.mark.parametrize(
    "name", ["dft_01test", "dft_01test@champion", "demo", "eagle3--demo@champion"]
)
def test_pull_checks_what_it_writes(run: Run, tmp_path: Path, name: str) -> None:
    ran = run("pull", name, str(tmp_path / "d"))
    assert ran.code == Exit.OK, ran
    assert (tmp_path / "d/draft/model.safetensors").stat().st_size == 4096
    assert "ok" in ran.err


@pytest.mark.usefixtures("succeeded")
def test_pull_of_the_wrong_alias(run: Run, tmp_path: Path) -> None:
    ran = run("pull", "dft_01test@candidate", str(tmp_path / "d"))
    assert (ran.code, "is champion" in ran.err) == (Exit.BAD_INPUT, True)


@pytest.mark.usefixtures("succeeded")
def test_a_damaged_file_is_not_kept(run: Run, state: State, tmp_path: Path) -> None:
    state.store.put_bytes("drafts/dft_01test/draft/model.safetensors", b"other bytes")
    ran = run("pull", "dft_01test", str(tmp_path / "d"))
    assert (ran.code, "sha256" in ran.err) == (Exit.UNEXPECTED, True)
    assert [p.name for p in (tmp_path / "d/draft").iterdir()] == ["config.json"]


@pytest.mark.usefixtures("succeeded")
def test_drafts(run: Run) -> None:
    text = run("drafts").out
    for part in ("dft_01test", "champion", "1.42", "1.10"):
        assert part in text
    assert json.loads(run("drafts", "--alias", "champion", "--json").out)["data"]


def test_a_replayed_submission_waits_for_the_old_job(run: Run, client: Client) -> None:
    args = ["submit", "--target", "demo", "--idempotency-key", "k", "--wait"]
    job = run(*args[:-1]).out.strip()
    client.cancel(job)
    ran = run(*args)
    assert ran.code == Exit.JOB_CANCELLED, ran


def test_waiting_is_given_up_in_time(run: Run) -> None:
    ran = run("submit", "--target", "demo", "--wait", "--timeout", "0")
    assert (ran.code, "goes on" in ran.err) == (Exit.TIMEOUT, True)


def test_the_template_names_every_key() -> None:
    from jobs.spec import JobSpec

    known: dict[str, Any] = JobSpec.model_json_schema()["properties"]
    assert set(yaml.safe_load(JOB_TEMPLATE)) <= set(known)
    assert all(f"{name}:" in JOB_TEMPLATE for name in known)


def test_jobs_are_steered(run: Run, queued: str) -> None:
    assert "paused" in run("pause", queued).err
    assert "queued" in run("resume", queued).err
    assert run("retry", queued).code == Exit.BAD_INPUT
    run("cancel", queued)
    assert "queued" in run("retry", queued).err


def test_drafts_are_promoted_and_rolled_back(run: Run, succeeded: str) -> None:
    assert "champion of eagle3--demo" in run("promote", succeeded).err
    assert run("rollback", succeeded).code == Exit.BAD_INPUT
