from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from rich.console import Console

from api.cli import watch
from api.cli.console import Exit, Fail
from api.cli.view import age, duration, headline, number
from api.client import Client, ServiceUnreachable
from api.schemas import EventView, JobError, JobView, StageProgress, StageView

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def _job(status: str = "running", **changes: Any) -> JobView:
    return JobView(
        id="job_1", status=status, version=1, target="demo", recipe="quick", created_at=NOW
    ).model_copy(update=changes)


def _client(states: Sequence[JobView | None]) -> Client:
    """A service that answers with each state in turn; None is a moment of absence."""
    left = list(states)

    def answer(_: httpx.Request) -> httpx.Response:
        state = left.pop(0) if len(left) > 1 else left[0]
        if state is None:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, content=state.model_dump_json())

    return Client("http://127.0.0.1:1", transport=httpx.MockTransport(answer))


def _gates(passed: bool) -> dict[str, Any]:
    checks = [{"name": "min_tau", "required": 1.3, "measured": 1.2, "passed": passed}]
    return {"gates": {"passed": passed, "checks": checks}}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_S", 0.0)


TRAIN = StageView(
    name="train",
    position=4,
    status="running",
    started_at=NOW,
    progress=StageProgress(
        done=120,
        total=194,
        unit="step",
        rate=0.8,
        eta_s=92,
        step=120,
        metrics={"train/loss": 2.31, "train/acc_step_0": 0.41, "eval/acceptance_length": 1.42},
    ),
)


def test_a_terminal_sees_stage_step_loss_acceptance_and_eta() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=90, color_system=None)
    states = [_job(stages=[TRAIN]), _job("succeeded", stages=[TRAIN])]
    done = watch.wait(_client(states), _job(stages=[TRAIN]), console=screen)
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert done.status == "succeeded"
    for part in ("train", "120/194 step", "0.8/s", "ETA 1m 32s", "loss 2.310", "1.42", "0.41"):
        assert part in text


def test_without_a_terminal_lines_tell_changes(capsys: pytest.CaptureFixture[str]) -> None:
    pending = TRAIN.model_copy(update={"status": "pending", "progress": None})
    ended = TRAIN.model_copy(
        update={"status": "succeeded", "summary": {"steps": 194, "acceptance_length": 1.5}}
    )
    states = [_job(stages=[TRAIN])] * 3 + [_job("succeeded", stages=[ended])]
    plain = Console(file=io.StringIO())
    watch.wait(_client(states), _job("queued", stages=[pending]), console=plain)
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "job_1 queued",
        "job_1 running",
        "train: running",
        "job_1 succeeded",
        "train: succeeded · 194 steps · acceptance length 1.50",
    ]


def test_a_service_that_comes_back_is_waited_for() -> None:
    states = [None, None, _job("succeeded")]
    assert watch.wait(_client(states), _job(), console=Console(file=io.StringIO()))


def test_a_service_that_stays_away_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE_S", 0.0)
    with pytest.raises(ServiceUnreachable):
        watch.wait(_client([None]), _job(), console=Console(file=io.StringIO()))


def test_time_runs_out() -> None:
    with pytest.raises(Fail, match="still running") as caught:
        watch.wait(_client([_job()]), _job(), timeout_s=0, console=Console(file=io.StringIO()))
    assert caught.value.code == Exit.TIMEOUT


@pytest.mark.parametrize(
    ("job", "code"),
    [
        (_job("succeeded"), Exit.OK),
        (_job("cancelled"), Exit.JOB_CANCELLED),
        (_job("failed", error=JobError(reason="bad_input", message="x")), Exit.JOB_FAILED),
        (_job("failed", error=JobError(reason="quality_gate", message="x")), Exit.GATE),
        (_job("succeeded", result=_gates(False)), Exit.GATE),
        (_job("succeeded", result=_gates(True)), Exit.OK),
    ],
)
def test_exit_codes(job: JobView, code: Exit) -> None:
    assert watch.exit_code(job) == code


def test_figures_read_well() -> None:
    assert [duration(s) for s in (7.9, 252, 3780)] == ["7s", "4m 12s", "1h 03m"]
    assert [number(x) for x in (24031, 0.812345, 310.4, 12.0)] == ["24,031", "0.812", "310", "12"]
    assert [age(NOW, NOW + timedelta(seconds=s)) for s in (59, 61, 9000)] == ["59s", "1m", "2h"]
    prove = StageView(
        name="prove", position=7, status="succeeded", summary={"verdict": "not_lossless"}
    )
    assert headline(prove) == "NOT lossless"


class _Restarting(Client):
    """A service that breaks a stream after one event, is away for a moment, and goes on."""

    def __init__(self, events: list[EventView], away: int) -> None:
        super().__init__("http://127.0.0.1:1")
        self.left, self.away = events, away

    def job(self, job_id: str) -> JobView:
        return _job("running" if self.left else "succeeded")

    def stream(self, job_id: str, *, after: int = 0) -> Iterator[EventView]:
        if self.away and self.left and self.left[0].seq > 1:
            self.away -= 1
            raise ServiceUnreachable("refused")
        assert not self.left or self.left[0].seq == after + 1
        if self.left:
            yield self.left.pop(0)
        if self.left:
            raise ServiceUnreachable("the connection broke")


def test_following_goes_on_after_a_restart() -> None:
    events = [
        EventView(seq=n, type="job.log", level="info", message="", created_at=NOW)
        for n in (1, 2, 3)
    ]
    client = _Restarting(list(events), away=2)
    assert list(watch.follow(client, "job_1")) == events


def test_following_ends_when_the_service_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PATIENCE_S", 0.0)
    with pytest.raises(ServiceUnreachable):
        list(watch.follow(_client([None]), "job_1"))
