"""Answers from a server, over real HTTP, with everything that may go wrong there."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3.data.batch import Sequence
from eagle3.data.engines import server
from eagle3.data.engines.client import API_KEY, Retry
from eagle3.data.engines.completions import Dialect, Reader
from eagle3.errors import BadInput, Stopped, TargetUnavailable
from eagle3.target import load_tokenizer
from tests.eagle3.data.conftest import MakeRun, Run
from tests.eagle3.data.served import Handler, Served, serve
from tests.tiny import EOS, Tiny, build_permutation_target, write_prompts

STAGES = ("resolve", "prepare", "regenerate")
Serving = Callable[..., Served]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are tried again at once."""
    quick = functools.partial(Retry, attempts=6, base_s=0.001, asked_cap_s=0.001)
    monkeypatch.setattr(server, "Retry", quick)


@pytest.fixture(scope="session")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A target whose answers may end before they are cut."""
    return build_permutation_target(tmp_path_factory.mktemp("ends") / "perm", ends=True)


@pytest.fixture
def serving() -> Iterator[Serving]:
    """Starts servers, which stop with the test."""
    stack: list[Any] = []

    def start(tiny: Tiny, **options: Any) -> Served:
        context = serve(Served(tiny, **options))
        stack.append(context)
        return context.__enter__()

    yield start
    for context in stack:
        context.__exit__(None, None, None)


@pytest.fixture
def make(make_run: MakeRun, ends: Tiny, tmp_path: Path) -> MakeRun:
    """A run of 24 prompts on the target `ends`, answered by a server."""
    source = write_prompts(tmp_path / "p.jsonl", ends.prompts(59)[35:])

    def run(served: Served | None = None, **regenerate: Any) -> Run:
        where = {} if served is None else {"engine": "openai", "base_url": served.url}
        settings = {"max_new_tokens": 12, "batch_size": 8, **where, **regenerate}
        if served is not None:
            settings.setdefault("concurrency", 4)
        return make_run(target=ends.path, source=source, regenerate=settings)

    return run


def answers(run: Run) -> list[dict[str, Any]]:
    return run.lines("regenerate", "responses.jsonl")


def check(run: Run, tiny: Tiny) -> None:
    """All 24 conversations are there, and their answers are the target's own."""
    found = answers(run)
    assert [r["id"] for r in found] == [p["id"] for p in run.lines("prepare", "prompts.jsonl")]
    assert len(found) == 24
    for response in found:
        [[start, end]] = response["spans"]
        answer = response["ids"][start:end]
        assert answer == tiny.chain(response["ids"][start - 1], 12)
        assert (answer[-1] == EOS) == (response["finish"] == "eos")
    assert {r["finish"] for r in found} == {"eos", "length"}


@pytest.mark.parametrize(
    ("way", "takes_ids"),
    [
        ("token_ids", True), ("logprobs", True), ("content", True), ("text", True),
        ("token_ids", False), ("text", False),
    ],
)  # fmt: skip
def test_however_tokens_come_they_are_the_targets_own(
    make: MakeRun, serving: Serving, ends: Tiny, way: str, takes_ids: bool
) -> None:
    served = serving(ends, way=way, takes_ids=takes_ids)
    run = make(served)
    summary = run.run(*STAGES)
    check(run, ends)
    assert (summary["engine"], summary["retries"], summary["not_round_trip"]) == ("openai", 0, 0)
    compared = summary["served"]
    assert (compared["prompts"], compared["tokenizer"]) == (8, "compared")
    assert compared["equal"] == compared["tokens"] > 50
    body = served.bodies[-1]
    assert isinstance(body["prompt"], list if takes_ids else str)
    assert (body["top_p"], body["top_k"], body["repetition_penalty"]) == (1.0, -1, 1.0)
    assert body["stop_token_ids"] == [EOS]


def failing(failures: list[Callable[[Handler], None]]) -> Callable[[Handler], None]:
    """After the requests that look at the server, every third one fails, each time otherwise."""
    count, kinds = itertools.count(), itertools.cycle(failures)

    def fail(handler: Handler) -> None:
        n = next(count)
        if n > 10 and n % 3 == 0:
            next(kinds)(handler)

    return fail


FAILURES: list[Callable[[Handler], None]] = [
    lambda h: h.fail(429, Retry_After="1"),
    lambda h: h.fail(500),
    lambda h: h.fail(503, "Loading model"),
    Handler.cut,
    lambda h: h.fail(200),
    lambda h: h.end({"finish_reason": "abort", "text": "", "token_ids": []}),
    lambda h: h.end({"finish_reason": "length", "text": "", "token_ids": [64]}),
    lambda h: h.end({"finish_reason": "length", "text": "", "token_ids": []}),
]


def test_what_may_pass_is_tried_again(make: MakeRun, serving: Serving, ends: Tiny) -> None:
    run = make(serving(ends, on_completion=failing(FAILURES)))
    summary = run.run(*STAGES)
    check(run, ends)
    assert summary["retries"] >= 8
    said = " ".join(line["message"] for line in run.logged("regenerate", "log"))
    for part in ("429", "500", "503", "no answer (RemoteProtocolError", "cannot be read"):
        assert part in said


def test_a_slow_server_is_given_up_in_time(
    make: MakeRun, serving: Serving, ends: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer never comes: its request is dropped and made again."""
    monkeypatch.setattr(server, "QUEUE_S", 0.2)
    monkeypatch.setattr(server, "TOKEN_S", 0.0)
    release, count = threading.Event(), itertools.count()

    def hang(handler: Handler) -> None:
        if next(count) == 12:
            release.wait(20)

    run = make(serving(ends, on_completion=hang))
    summary = run.run(*STAGES)
    release.set()
    check(run, ends)
    assert summary["retries"] >= 1
    assert "ReadTimeout" in run.logged("regenerate", "log")[0]["message"]


@pytest.mark.slow
def test_a_server_that_goes_away_keeps_what_is_finished(
    make: MakeRun, serving: Serving, ends: Tiny
) -> None:
    count = itertools.count()

    def away(handler: Handler) -> None:
        if next(count) > 18:
            handler.fail(502)

    served = serving(ends, on_completion=away)
    run = make(served)
    with pytest.raises(TargetUnavailable, match=r"status 502: .*injected.* 6 times in a row"):
        run.run(*STAGES)
    [work] = (run.path / "stages" / "regenerate").rglob("work/responses.jsonl")
    kept = len(work.read_text().splitlines())
    assert 5 <= kept < 24
    asked = len(served.bodies)
    served.on_completion = None
    run.run("regenerate")
    check(run, ends)
    assert len(served.bodies) - asked == 24 - kept + 9  # nine to look at the server


def test_no_server_there(make: MakeRun, serving: Serving, ends: Tiny) -> None:
    served = Served(ends, url="http://127.0.0.1:9/v1")
    with pytest.raises(TargetUnavailable, match="no answer"):
        make(served).run(*STAGES)


def test_term_stops_at_once_and_keeps_what_is_finished(
    make: MakeRun, serving: Serving, ends: Tiny
) -> None:
    release, count, sent = threading.Event(), itertools.count(), []

    def term(handler: Handler) -> None:
        n = next(count)
        if n == 20:
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)
        if n >= 20:
            release.wait(20)

    served = serving(ends, on_completion=term)
    run = make(served)
    with pytest.raises(Stopped, match="finished conversations are kept"):
        run.run(*STAGES)
    assert time.monotonic() - sent[0] < 1.5
    release.set()
    served.on_completion = None
    run.run("regenerate")
    check(run, ends)


def test_another_model_is_refused_by_its_first_difference(
    make: MakeRun, serving: Serving, ends: Tiny, tmp_path: Path
) -> None:
    other = build_permutation_target(tmp_path / "other", ends=True, seed=1)
    with pytest.raises(
        BadInput, match=r"'tiny' is not the target: after .* and 0 tokens of its"
    ) as e:
        make(serving(other)).run(*STAGES)
    assert "where the target prefers" in str(e.value)
    assert "20.00 nats" in str(e.value)
    assert "resolve" in e.value.hint


@pytest.mark.parametrize(
    ("options", "settings", "message"),
    [
        (
            {"shift": 1},
            {},
            r"tokenizer is not the target's: of .*, token 0 is \[0\] here and \[1\]",
        ),
        ({"names": ("a", "b")}, {}, "serves 2 models: a, b"),
        ({"names": ("a", "b")}, {"model": "c"}, "does not serve 'c'; it serves a, b"),
        ({"context": 10}, {}, r"takes 10 tokens; the longest prompt and its answer may have 18"),
        ({"key": "sesame"}, {}, "refuses the key"),
    ],
)
def test_what_does_not_fit_is_refused(
    make: MakeRun,
    serving: Serving,
    ends: Tiny,
    options: dict[str, object],
    settings: dict[str, str],
    message: str,
) -> None:
    with pytest.raises(BadInput, match=message):
        make(serving(ends, **options), **settings).run(*STAGES)


def test_the_key_is_sent_and_shown_nowhere(
    make: MakeRun, serving: Serving, ends: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(API_KEY, "sesame")
    run = make(serving(ends, key="sesame", tokenizes=False))
    summary = run.run(*STAGES)
    check(run, ends)
    assert summary["served"]["tokenizer"] == "seen through the answers"
    monkeypatch.setenv(API_KEY, "thistle")
    wrong = make(serving(ends, key="sesame"), temperature=0.5)
    with pytest.raises(BadInput, match="refuses the key") as e:
        wrong.run(*STAGES)
    assert "thistle" not in str(e.value)
    written = [p.read_text() for p in wrong.path.rglob("*.json*") if p.is_file()]
    assert not any("sesame" in text or "thistle" in text for text in written)


@pytest.mark.slow
def test_a_budget_keeps_the_head_of_the_line(make: MakeRun, serving: Serving, ends: Tiny) -> None:
    served = serving(ends)
    results = []
    for concurrency in (1, 5):
        run = make(served, token_budget=64, concurrency=concurrency, answers=2)
        summary = run.run(*STAGES)
        assert summary["heldout_samples"] == 4
        results.append((answers(run), summary["train_response_tokens"]))
    assert results[0] == results[1]
    spans = [r["spans"] for r in results[0][0] if r["split"] == "train"]
    longest = max(end - start for [(start, end)] in spans)
    assert 64 <= results[0][1] < 64 + longest


@pytest.mark.slow
def test_later_turns_are_asked_with_the_earlier_answers(
    make_run: MakeRun, serving: Serving, tiny: Tiny, tmp_path: Path
) -> None:
    users = [[tiny.order[i], tiny.order[i + 7], tiny.order[i + 20]] for i in range(12)]
    lines = [{"messages": [{"role": "user", "content": f"t{u}"} for u in three]} for three in users]
    path = tmp_path / "multi.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    served = serving(tiny)
    both = []
    for where in ({}, {"engine": "openai", "base_url": served.url}):
        run = make_run(source=path, regenerate={"max_new_tokens": 12, **where})
        run.run(*STAGES)
        both.append(answers(run))
    assert both[0] == both[1]
    assert {len(r["spans"]) for r in both[1]} == {3}


class TestText:
    """Answers of servers that give nothing but text."""

    def read(self, tiny: Tiny, text: str, finish: str = "length", tokens: int | None = None) -> Any:
        dialect = Dialect("m", "text")
        reader = Reader(load_tokenizer(tiny.path), frozenset({EOS}), 64, dialect)
        usage = {} if tokens is None else {"completion_tokens": tokens}
        sequence = Sequence([0, 3, 5], 12)
        choice = {"finish_reason": finish, "text": text}
        return reader.answer({"choices": [choice], "usage": usage}, sequence)

    def test_what_comes_back_as_it_was_is_exact(self, tiny: Tiny) -> None:
        answer = self.read(tiny, "t7 t8", tokens=2)
        assert (answer.ids, answer.exact) == ([7, 8], True)

    def test_other_text_is_counted(self, tiny: Tiny) -> None:
        assert not self.read(tiny, "t7  t8").exact
        assert not self.read(tiny, "t7 what").exact

    def test_another_number_of_tokens_is_counted(self, tiny: Tiny) -> None:
        assert not self.read(tiny, "t7 t8", tokens=3).exact

    def test_the_end_is_added_where_the_server_leaves_it_off(self, tiny: Tiny) -> None:
        for text in ("t7 t8", "t7 t8 </s>"):
            for tokens in (2, 3) if text == "t7 t8" else (3,):
                answer = self.read(tiny, text, "stop", tokens)
                assert (answer.ids, answer.exact) == ([7, 8, EOS], True)

    def test_a_character_cut_in_two_is_left_off(self, tiny: Tiny) -> None:
        answer = self.read(tiny, "t7 t8 �")
        assert (answer.ids, answer.exact) == ([7, 8], False)
