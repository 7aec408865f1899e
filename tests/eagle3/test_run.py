"""A run directory: what is found again, what is made again, and who may work in it."""

from __future__ import annotations

import fcntl
import io
import json
import threading
from pathlib import Path

import pytest

from eagle3.config import RunConfig, load_recipe
from eagle3.errors import BadInput, Stopped
from eagle3.process import alone
from eagle3.progress import Progress
from eagle3.run import Context, Stage, current, read_manifest, run_stage, write_json


def write_word(ctx: Context) -> None:
    (ctx.out / "word.txt").write_text("word")


FIRST = Stage("first", (), lambda c: c.recipe.seed, write_word)
SECOND = Stage("second", ("first",), lambda c: 0, write_word)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = RunConfig(target="demo", recipe=load_recipe("quick"))
    write_json(tmp_path / "config.json", config.model_dump(mode="json"))
    return tmp_path


def cached(stage: Stage, run: Path) -> bool:
    stream = io.StringIO()
    run_stage(stage, run, stream)
    found: bool = json.loads(stream.getvalue().splitlines()[-1])["cached"]
    return found


def test_an_output_that_is_whole_is_not_made_again(run: Path) -> None:
    assert [cached(FIRST, run), cached(FIRST, run)] == [False, True]


@pytest.mark.parametrize("damage", ["edited", "gone", "manifest cut short", "manifest empty"])
def test_a_damaged_output_is_made_again(run: Path, damage: str) -> None:
    run_stage(FIRST, run, io.StringIO())
    word, manifest = current(run, "first") / "word.txt", current(run, "first") / "manifest.json"
    match damage:
        case "edited":
            word.write_text("warp")
        case "gone":
            word.unlink()
        case "manifest cut short":
            manifest.write_text(manifest.read_text()[:40])
        case _:
            manifest.write_text("{}")
    assert not cached(FIRST, run)
    assert (word.read_text(), cached(FIRST, run)) == ("word", True)


def test_a_stage_needs_the_ones_before_it(run: Path) -> None:
    with pytest.raises(BadInput, match="first has not run"):
        run_stage(SECOND, run, io.StringIO())
    run_stage(FIRST, run, io.StringIO())
    run_stage(SECOND, run, io.StringIO())
    (current(run, "first") / "manifest.json").unlink()  # killed while it was made again
    with pytest.raises(BadInput, match="first has not run") as e:
        run_stage(SECOND, run, io.StringIO())
    assert e.value.hint == f"first run: eagle3 first {run}"


@pytest.mark.parametrize("text", ['{"outputs": {', "[]", "{}", "\xff"])
def test_a_damaged_manifest_is_named_and_made_anew(run: Path, text: str) -> None:
    run_stage(FIRST, run, io.StringIO())
    manifest = current(run, "first") / "manifest.json"
    manifest.write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput, match=r"first/\w+/manifest.json is damaged"):
        run_stage(SECOND, run, io.StringIO())
    run_stage(FIRST, run, io.StringIO())
    run_stage(SECOND, run, io.StringIO())


def test_time_spent_before_a_stop_counts(run: Path) -> None:
    def stopped(ctx: Context) -> None:
        ctx.stop.set()
        ctx.check_stop()

    with pytest.raises(Stopped):
        run_stage(Stage("first", (), lambda c: 0, stopped), run, io.StringIO())
    [spent] = run.glob("stages/first/*/work/seconds.json")
    write_json(spent, 100.0)
    manifest = run_stage(Stage("first", (), lambda c: 0, write_word), run, io.StringIO())
    assert 100 <= manifest["seconds"] < 110
    assert list(read_manifest(current(run, "first"))["outputs"]) == ["word.txt"]


def test_another_process_is_waited_for(run: Path) -> None:
    holder = (run / "lock").open("a")
    fcntl.flock(holder, fcntl.LOCK_EX)
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        holder.close()  # the other process ends, in whatever way

    with alone(run, "first", say, threading.Event()):
        pass
    assert said == [f"another process works in {run}; waiting until its stage ends"]


def test_who_waits_can_be_stopped(run: Path) -> None:
    stop = threading.Event()
    with (run / "lock").open("a") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with (
            pytest.raises(Stopped, match="before it began"),
            alone(run, "first", lambda _: stop.set(), stop),
        ):
            pass


def test_a_rate_is_that_of_the_count_which_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stage counts several things, one after the other."""
    clock = iter([0.0, 0.0, 0.0, 2.0, 100.0, 100.0, 104.0])
    monkeypatch.setattr("eagle3.run.time.monotonic", lambda: next(clock))
    progress = Progress("s", tmp_path / "s.jsonl", stream := io.StringIO())
    for done in (10, 90, 0, 4):
        progress.progress(done, 100, "%")
    rates = [json.loads(line)["rate"] for line in stream.getvalue().splitlines()]
    assert rates == [0.0, 40.0, 0.0, 1.0]
