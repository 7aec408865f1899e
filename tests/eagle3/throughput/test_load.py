"""The generator's figures against a server whose rounds take a known time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import pytest

from eagle3.bench.metrics import Reply, median_range, spread
from eagle3.engines.engine import Answer, Drafted, Sampling, Settings
from eagle3.errors import BadInput, EngineFailed
from eagle3.throughput.lab import Lab, Plan
from eagle3.throughput.load import Heard, Load, Own
from eagle3.throughput.samples import Cell, sample
from tests.eagle3.throughput.fake import Law, LawfulEngine, LawfulServer

SLOW = Law(
    fixed=0.02, drafted=0.004, drafting=0.0, sequences=0.0, beyond=0.0, first=0.03, at=(0.5,)
)
PROMPTS = [[1, 2, 3], [4, 5], [6]]


@pytest.fixture
def plain() -> Iterator[LawfulServer]:
    with LawfulServer(SLOW, 0) as server:
        yield server


def test_a_reply_is_timed_by_its_arrivals() -> None:
    reply = Reply(tokens=5, first_s=0.3, waits_s=(0.1, 0.3))
    assert reply.seconds == pytest.approx(0.7)
    assert reply.token_s == pytest.approx(0.1)  # four tokens after the first
    assert Reply(1, 0.3, ()).token_s is None


def test_percentiles() -> None:
    found = spread([float(n) for n in range(101)])
    assert (found.mean, found.p50, found.p90, found.p99) == (50, 50, 90, 99)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([2.0], (2, 2, 2)),
        ([3.0, 1.0, 2.0, 9.0, 4.0], (3, 1, 9)),  # 94%: the whole range
        ([float(n) for n in range(9)], (4, 1, 7)),  # 96% without the ends
    ],
)
def test_the_interval_of_runs(runs: list[float], expected: tuple[float, float, float]) -> None:
    assert median_range(runs) == expected


def test_closed_loop(plain: LawfulServer) -> None:
    heard = Own().run(plain, PROMPTS, Load(6, concurrency=3), Sampling(8, ignore_eos=True))
    assert [reply.tokens for reply in heard.replies] == [8] * 6
    # Two answers after one another in each of three places: 2 * (first + 7 rounds).
    # A machine that is busy sleeps longer, never shorter.
    assert heard.seconds >= 2 * (0.03 + 7 * 0.02)
    assert plain.most == 3
    found = sample(0, Cell(0, 3), Load(6, concurrency=3), heard, Drafted())
    assert found.in_progress == pytest.approx(3, rel=0.15)
    assert found.token_s is not None
    assert found.token_s.p50 >= 0.02
    assert sorted({tuple(body["prompt"]) for body in plain.bodies}) == [(1, 2, 3), (4, 5), (6,)]
    assert all(body["ignore_eos"] and body["temperature"] == 0 for body in plain.bodies)


def test_open_loop_sends_at_its_own_times(plain: LawfulServer) -> None:
    load = Load(8, rate=40.0)
    times = load.arrivals()
    assert times == load.arrivals()
    assert times[0] == 0
    assert mean(Load(4000, rate=40.0).arrivals()) == pytest.approx(50, rel=0.1)
    heard = Own().run(plain, PROMPTS, load, Sampling(4, ignore_eos=True))
    assert heard.seconds >= times[-1] + 0.03
    assert len(heard.replies) == 8


def test_rounds_arrive_at_once_and_are_counted() -> None:
    with LawfulServer(SLOW, 1) as server:
        before = server.metrics()
        heard = Own().run(server, PROMPTS, Load(4, 4), Sampling(41, ignore_eos=True))
        counted = server.metrics() - before
    waits = sum(len(reply.waits_s) for reply in heard.replies)
    assert counted.rounds / 2 < waits <= counted.rounds  # a late reader finds two at once
    assert counted.tau == pytest.approx(1.5, rel=0.2)
    found = sample(0, Cell(1, 4), Load(4, 4), heard, counted)
    assert found.wait_s is not None
    assert found.token_s is not None
    assert found.wait_s.mean / found.token_s.mean == pytest.approx(160 / waits, rel=0.1)


class _Cut(LawfulServer):
    async def _stream(self, body: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b'data: {"error": {"message": "out of blocks"}}\n\n')


def test_a_request_that_fails_fails_the_run() -> None:
    with (
        _Cut(SLOW, 0) as server,
        pytest.raises(EngineFailed, match=r"failed under load.*out of blocks"),
    ):
        Own().run(server, PROMPTS, Load(2, 2), Sampling(4))


class _NoServer:
    """An engine that decodes in this process, as many answers at once as it has slots."""

    url, log, name = None, None, "inprocess"

    def __init__(self) -> None:
        self.started: list[int] = []

    def start(self, target: Path, draft: Path | None, settings: Settings, work: Path) -> _NoServer:
        self.started.append(settings.slots)
        return self

    def generate(self, prompts: object, sampling: Sampling) -> list[Answer]:
        return [Answer((1,) * sampling.max_tokens, 0.01) for _ in prompts]  # type: ignore[attr-defined]

    def metrics(self) -> Drafted:
        return Drafted()

    def stop(self) -> None:
        pass

    def __enter__(self) -> _NoServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_an_engine_without_a_server_gets_the_slots_of_each_load(tmp_path: Path) -> None:
    engine = _NoServer()
    plan = Plan(PROMPTS, output_tokens=4, rounds=1)
    with Lab(engine, tmp_path, tmp_path, Settings(slots=4), plan, Own(), tmp_path) as lab:  # type: ignore[arg-type]
        lab.measure([Cell(0, 1), Cell(0, 4)])
    assert engine.started == [4, 1, 4]  # the first one told that it does not stream
    assert [s.concurrency for s in lab.samples.all] == [1, 4]
    assert all(s.first_s is None for s in lab.samples.all)
    with pytest.raises(BadInput, match="no server"):
        Own().run(engine, PROMPTS, Load(2, rate=1.0), Sampling(4))  # type: ignore[arg-type]


def test_runs_alternate_and_each_server_is_warmed(tmp_path: Path) -> None:
    quick = Law(0.0005, 0, 0, 0, 0, 0, first=0.001)
    engine = LawfulEngine(quick)
    plan = Plan(PROMPTS, output_tokens=4, rounds=2, waves=1, fewest=2)
    with Lab(engine, tmp_path, tmp_path, Settings(slots=2), plan, Own(), tmp_path / "work") as lab:
        lab.measure([Cell(1, 1), Cell(1, 2)])
    assert [(s.turn, s.drafted, s.concurrency) for s in lab.samples.all] == [
        (0, 0, 1), (0, 0, 2), (0, 1, 1), (0, 1, 2),
        (1, 1, 1), (1, 1, 2), (1, 0, 1), (1, 0, 2),
    ]  # fmt: skip
    assert [s.draft_tokens for s in engine.started] == [0, 1, 1, 0]
    assert {s.slots for s in engine.started} == {2}


def test_servers_stay_up_together(tmp_path: Path) -> None:
    engine = LawfulEngine(Law(0.0005, 0, 0, 0, 0, 0, first=0.001))
    plan = Plan(PROMPTS, output_tokens=4, rounds=3, waves=1, fewest=1, together=True)
    with Lab(engine, tmp_path, tmp_path, Settings(), plan, Own(), tmp_path / "work") as lab:
        lab.measure([Cell(1, 1)])
    assert [s.draft_tokens for s in engine.started] == [0, 1]


def test_what_a_tool_does_not_count_is_asked_again(tmp_path: Path) -> None:
    class Silent(Own):
        counts = False

    quick = Law(0.0005, 0, 0, 0, 0, 0, first=0.001)
    plan = Plan(PROMPTS, output_tokens=4, rounds=1, waves=1, fewest=2, together=True)
    engine = LawfulEngine(quick)
    with Lab(engine, tmp_path, tmp_path, Settings(), plan, Silent(), tmp_path / "work") as lab:
        lab.measure([Cell(1, 1)])
    plain, drafted = (len(running.bodies) for running in engine.running)
    assert (plain, drafted) == (1 + 2, 1 + 2 + 2)  # warm, the load, and the load once more
    assert lab.samples.all[1].tokens == 8


class _Short(Own):
    def run(self, *args: object) -> Heard:
        heard = super().run(*args)  # type: ignore[arg-type]
        return Heard(heard.replies[:-1], heard.seconds)


def test_answers_of_another_length_are_refused(tmp_path: Path) -> None:
    plan = Plan(PROMPTS, output_tokens=4, rounds=1, waves=1, fewest=2)
    engine = LawfulEngine(Law(0.0005, 0, 0, 0, 0, 0, first=0.001))
    with (
        Lab(engine, tmp_path, tmp_path, Settings(), plan, _Short(), tmp_path / "work") as lab,
        pytest.raises(EngineFailed, match="2 answers of 4 tokens were asked for, and 4 tokens"),
    ):
        lab.measure([Cell(0, 1)])


def test_a_draft_that_is_never_used_is_refused(tmp_path: Path) -> None:
    class Deaf(LawfulEngine):
        def start(
            self, target: Path, draft: Path | None, settings: Settings, work: Path
        ) -> LawfulServer:
            return LawfulServer(self.law, 0)  # serves the target alone

    plan = Plan(PROMPTS, output_tokens=4, rounds=1, waves=1, fewest=2)
    engine = Deaf(Law(0.0005, 0, 0, 0, 0, 0, first=0.001))
    with (
        Lab(engine, tmp_path, tmp_path, Settings(), plan, Own(), tmp_path / "work") as lab,
        pytest.raises(EngineFailed, match="counts no round that drafted"),
    ):
        lab.measure([Cell(2, 1)])
