"""Three ways for features to take: training sees the same; damaged ones are made anew."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.data.features import FeatureIndex, Sample, SampleRef
from eagle3.data.offline import FeatureStore
from eagle3.data.online import OnlineSource, Recent
from eagle3.data.stream import StreamedSource
from eagle3.decode.linear import speed_up
from eagle3.errors import BadInput, DiskFull
from eagle3.run import current
from eagle3.target import Target
from tests.eagle3.data.answered import LAYERS, responses, run_extract, run_train, write_config

torch.set_num_threads(1)


@pytest.mark.slow
def test_training_cannot_tell_where_features_come_from(answered: Path) -> None:
    histories = {}
    for mode in ("offline", "online", "streamed"):
        write_config(answered, mode=mode)
        summary = run_extract(answered)
        assert summary["mode"] == mode
        assert summary["tokens"] > 0
        stored = {path.suffix for path in current(answered, "extract").iterdir()}
        assert stored == ({".json", ".safetensors"} if mode == "offline" else {".json"})
        histories[mode], _ = run_train(answered, mode)
    assert histories["streamed"] == histories["online"]
    # Stored features come from other batches: where a row falls between two bfloat16 numbers, it
    # can be rounded the other way.
    for stored_row, made in zip(histories["offline"], histories["online"], strict=True):
        assert made == pytest.approx(stored_row, rel=2e-3)
    assert len(histories["online"]) >= 4


def test_a_target_that_reads_in_half_precision_is_not_in_memory_twice(
    answered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(answered, mode="online")
    run_extract(answered)
    loaded = []

    def load(path: Path, dtype: torch.dtype, *args: Any) -> Target:
        loaded.append(dtype)
        return whole(path, dtype, *args)

    whole = Target.load
    monkeypatch.setattr(Target, "load", load)
    run_train(answered, "in float32")
    monkeypatch.setattr("eagle3.data.local.working_type", lambda *_: torch.bfloat16)
    run_train(answered, "in bfloat16")
    assert loaded == [torch.float32, torch.bfloat16]


@pytest.fixture
def stored(answered: Path) -> Path:
    write_config(answered)
    run_extract(answered)
    return current(answered, "extract")


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 4
    path.write_bytes(data)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize("damage", [flip_a_bit, cut_short, Path.unlink])
def test_a_damaged_shard_is_read_by_the_target_again(
    answered: Path, stored: Path, damage: Callable[[Path], None]
) -> None:
    expected, log = run_train(answered, "whole")
    assert "again" not in log
    damage(stored / "shard-00001.safetensors")
    found, log = run_train(answered, damage.__name__)
    assert found == expected
    warnings = [
        line for line in map(json.loads, log.splitlines()) if line.get("level") == "warning"
    ]
    assert len(warnings) == 1
    assert "shard-00001.safetensors" in warnings[0]["message"]
    assert "the target reads its" in warnings[0]["message"]
    FeatureStore.open(stored, verify=True)  # put back in its place


def test_a_shard_of_other_answers_is_not_made_up(
    answered: Path, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored / "shard-00000.safetensors"
    kept = path.read_bytes()
    flip_a_bit(path)
    monkeypatch.setattr("eagle3.data.offline.read_sequences", lambda path: [])
    with pytest.raises(BadInput, match="other answers than it was made of"):
        run_train(answered, "other answers")
    path.write_bytes(kept)


# --- the extraction process -------------------------------------------------------------------


@pytest.fixture(scope="module")
def index(answered: Path) -> FeatureIndex:
    write_config(answered, mode="streamed")
    run_extract(answered)
    return FeatureIndex.read(current(answered, "extract"))


@pytest.fixture(scope="module")
def streamed(answered: Path, index: FeatureIndex) -> Iterator[StreamedSource]:
    source = StreamedSource(index, responses(answered), answered / "target")
    yield source
    source.close()


def equal(a: Sample, b: Sample) -> bool:
    names = ("input_ids", "features", "hidden", "argmax", "lse")
    return a.id == b.id and all(torch.equal(getattr(a, n), getattr(b, n)) for n in names)


@pytest.mark.slow
def test_the_process_runs_ahead_but_not_away(
    answered: Path, index: FeatureIndex, streamed: StreamedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = streamed._ask

    def count(refs: list[SampleRef]) -> int:
        asked.append(1)
        return ask(refs)

    monkeypatch.setattr(streamed, "_ask", count)
    refs = streamed.samples("train")
    batches = streamed.batches([[ref] for ref in refs])
    first = next(batches)
    assert len(asked) == 1 + 2  # one taken, two on their way
    arrived = [streamed._arrived.get(timeout=300) for _ in range(2)]  # while nobody asks
    assert [found[0].number for found in arrived if found] == [2, 3]
    assert streamed._arrived.empty()
    for found in arrived:
        streamed._arrived.put(found)
    target = Target.load(answered / "target", capture_layers=LAYERS)
    speed_up(target.model)
    online = OnlineSource(target, index, responses(answered))
    heldout = streamed.samples("heldout")[0]
    assert equal(streamed.load(heldout), online.load(heldout))  # out of order, amid batches
    second = next(batches)
    assert isinstance(batches, Generator)
    batches.close()  # the rest is not wanted
    whole = list(streamed.batches([refs[:2], refs[2:3]]))
    assert equal(first[0], online.load(refs[0]))
    assert equal(second[0], online.load(refs[1]))
    assert [[s.id for s in batch] for batch in whole] == [[r.id for r in refs[:2]], [refs[2].id]]


def test_a_killed_process_is_an_error_not_a_hang(streamed: StreamedSource) -> None:
    refs = streamed.samples("train")
    streamed._process.send_signal(signal.SIGTERM)  # sent to the group of a stopped training
    batches = streamed.batches([[ref] for ref in refs])
    next(batches)
    streamed._process.kill()
    with pytest.raises(RuntimeError, match="was killed by SIGKILL"):
        list(batches)
    with pytest.raises(RuntimeError, match="was killed by SIGKILL"):
        streamed.load(refs[0])


def fake(run: Path, index: FeatureIndex, script: str) -> StreamedSource:
    command = (sys.executable, "-c", f"import signal, sys; sys.stdin.readline(); {script}")
    return StreamedSource(index, responses(run), run / "target", command=command)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise SystemExit('no such device')", "ended with code 1 and said: no such device"),
        ("print('hello', flush=True)", "ended with code 0 in silence"),
        ("print('9' * 99, flush=True); sys.stdin.read()", "failed: unreadable answer"),
    ],
)
def test_a_process_that_ends_gives_its_reason(
    answered: Path, index: FeatureIndex, script: str, reason: str
) -> None:
    source = fake(answered, index, script)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=reason):
            source.load(source.samples("train")[0])
    source.close()


def test_closing_ends_the_process(
    answered: Path, index: FeatureIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fake(answered, index, "sys.stdin.read()")
    source.close()
    source.close()
    assert source._process.returncode == 0
    assert not source._reader.is_alive()
    monkeypatch.setattr("eagle3.data.stream.END_SECONDS", 0.1)
    source = fake(answered, index, "signal.pause()")
    source.close()
    assert source._process.returncode == -signal.SIGKILL


def test_the_process_tells_what_the_user_can_mend(answered: Path, index: FeatureIndex) -> None:
    told = json.dumps({"reason": "disk_full", "message": "no room", "hint": "make some"}).encode()
    frame = len(told).to_bytes(8, "little") + bytes(8) + told
    source = fake(answered, index, f"sys.stdout.buffer.write({frame!r})")
    with pytest.raises(DiskFull, match="no room") as caught:
        source.load(source.samples("train")[0])
    assert caught.value.hint == "make some"
    source.close()


def test_answers_that_changed_since_are_refused(
    answered: Path, index: FeatureIndex, tmp_path: Path
) -> None:
    other = tmp_path / "responses.jsonl"
    other.write_text(responses(answered).read_text() + "\n")
    with pytest.raises(BadInput, match="has changed since the stage extract ran"):
        OnlineSource(Target.load(answered / "target"), index, other)


def test_recent_samples_stay_within_their_size() -> None:
    def sample(name: str) -> Sample:
        rows = torch.zeros(4, 6, dtype=torch.bfloat16)
        ids = torch.zeros(4, dtype=torch.int64)
        return Sample(name, "train", ids, rows, rows[:, :2], ids, torch.zeros(4), [(1, 4)])

    recent = Recent(limit=3 * 64)
    for name in "abc":
        recent.put(sample(name))
    assert recent.get("a") is not None
    recent.put(sample("d"))
    assert recent.get("b") is None
    assert recent.get("a") is not None
    assert recent.bytes == 3 * 64
