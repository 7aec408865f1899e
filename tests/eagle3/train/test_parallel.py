"""Several processes train as one does: the same steps, the same curve, one writer."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from eagle3 import cli
from eagle3.errors import BadInput
from eagle3.parallel import enough_for_all, share
from eagle3.run import current, read_config, read_manifest, run_stage, write_json
from tests.eagle3.train.stage import before_step, change_recipe, stage, weights
from tests.together import PROCESSES, run_together


@pytest.fixture(scope="module")
def alone(extracted: Path) -> Path:
    """A training by one process, in 30 steps of three forwards; the last has one."""
    change_recipe(extracted, accumulate=3, batch_tokens=32)
    cli_train(extracted)
    return extracted


@pytest.fixture
def untrained(alone: Path, tmp_path: Path) -> Path:
    """The same run directory, before that training."""
    run = tmp_path / "run"
    shutil.copytree(alone, run)
    shutil.rmtree(run / "stages" / "train")
    (run / "logs" / "train.jsonl").unlink()
    return run


def cli_train(run: Path) -> None:
    with pytest.raises(SystemExit) as e:
        cli.main(["train", str(run)])
    assert e.value.code == 0


def processes(run: Path, what: str) -> tuple[list[int], list[str]]:
    """Exit codes and outputs of processes in which something happens."""
    return run_together(["-m", "tests.eagle3.train.process", str(run), what])


def history(run: Path) -> list[dict[str, Any]]:
    lines = (current(run, "train") / "history.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def assert_same_curve(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected) == 30
    for here, there in zip(found, expected, strict=True):
        assert here.keys() == there.keys()
        for name in ("step", "train/loss", "train/grad_norm", "train/learning_rate", "eval/loss"):
            if name in there:
                assert here[name] == pytest.approx(there[name], rel=1e-5), (there["step"], name)


def assert_same_draft(run: Path, expected: Path) -> None:
    found, there = weights(run), weights(expected)
    assert found.keys() == there.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, there[name], rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_the_same_curve_under_torchrun(alone: Path, untrained: Path, sharded: bool) -> None:
    change_recipe(untrained, sharded=sharded)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    done = subprocess.run(
        [*launcher, f"--nproc-per-node={PROCESSES}", "-m", "eagle3.cli", "train", str(untrained)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_curve(history(untrained), history(alone))
    assert_same_draft(untrained, alone)
    summary, there = (read_manifest(current(x, "train"))["summary"] for x in (untrained, alone))
    assert (summary["processes"], there["processes"]) == (PROCESSES, 1)
    assert summary["train_tokens"] == there["train_tokens"]
    printed = [json.loads(line) for line in done.stdout.splitlines()]  # by one process alone
    assert [x["step"] for x in printed if x["kind"] == "metric"] == list(range(1, 31))
    assert [x["kind"] for x in printed].count("result") == 1


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_term_stops_all_and_one_process_goes_on(
    alone: Path, untrained: Path, sharded: bool
) -> None:
    change_recipe(untrained, sharded=sharded)
    codes, outputs = processes(untrained, "term")
    assert codes == [75] * PROCESSES, outputs
    assert "a checkpoint of step 4 of 30 was kept" in outputs[0]
    change_recipe(untrained, sharded=False)
    cli_train(untrained)
    assert "from the checkpoint of step 4" in (untrained / "logs" / "train.jsonl").read_text()
    assert_same_curve(history(untrained), history(alone))
    assert_same_draft(untrained, alone)


@pytest.mark.slow
def test_one_process_stops_and_spread_ones_go_on(
    alone: Path, untrained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        before_step(lambda t: t.ctx.stop.set() if t.state["step"] == 9 else None, patch)
        with pytest.raises(SystemExit) as e:
            cli.main(["train", str(untrained)])
        assert e.value.code == 75
    change_recipe(untrained, sharded=True)
    codes, outputs = processes(untrained, "train")
    assert codes == [0] * PROCESSES, outputs
    assert "from the checkpoint of step 10" in outputs[0]
    assert_same_curve(history(untrained), history(alone))
    assert_same_draft(untrained, alone)


@pytest.mark.slow
def test_spread_ones_stopped_after_every_step(alone: Path, untrained: Path) -> None:
    """All is kept of spread weights and moments: the bits are those of a training in one go."""
    change_recipe(untrained, sharded=True, epochs=0.4, eval_every=2)
    whole = untrained.with_name("whole")
    shutil.copytree(untrained, whole)
    assert processes(whole, "train")[0] == [0] * PROCESSES
    assert len(history(whole)) == 3
    for step in (1, 2):
        codes, outputs = processes(untrained, "step")
        assert codes == [75] * PROCESSES, outputs
        assert f"a checkpoint of step {step} " in outputs[0]
    assert processes(untrained, "step")[0] == [0] * PROCESSES
    found, there = weights(untrained), weights(whole)
    assert all(torch.equal(value, there[name]) for name, value in found.items())
    assert history(untrained) == history(whole)


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_nan_that_one_process_meets_is_left_out_by_all(untrained: Path, sharded: bool) -> None:
    change_recipe(untrained, sharded=sharded)
    codes, outputs = processes(untrained, "nan")
    assert codes == [0] * PROCESSES, outputs
    summary = read_manifest(current(untrained, "train"))["summary"]
    assert (summary["steps"], summary["batches_skipped"]) == (30, 4)  # one an epoch
    kept = sorted((current(untrained, "train") / "skipped").iterdir())
    assert len(kept) == 4
    facts = json.loads((kept[0] / "batch.json").read_text())
    assert len(facts["samples"]) == 3  # those of both processes
    assert "features of 3 hold NaN" in facts["reason"]


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < PROCESSES, reason="needs a GPU a process")
def test_a_draft_spread_over_gpus(alone: Path, untrained: Path) -> None:
    change_recipe(untrained, sharded=True)
    codes, outputs = processes(untrained, "train")
    assert codes == [0] * PROCESSES, outputs
    for here, there in zip(history(untrained), history(alone), strict=True):
        assert here["train/loss"] == pytest.approx(there["train/loss"], rel=1e-3)


@pytest.fixture
def spread(alone: Path, tmp_path: Path) -> Path:
    """The same run directory before `extract`, for a target spread over its processes."""
    run = tmp_path / "run"
    shutil.copytree(alone, run)
    shutil.rmtree(run / "stages" / "train")
    shutil.rmtree(run / "stages" / "extract")
    config = read_config(run).model_dump(mode="json")
    config["recipe"]["extract"] |= {"sharded": True, "shard_tokens": 256}
    write_json(run / "config.json", config)
    return run


@pytest.mark.slow
def test_a_spread_target_writes_the_same_shards(alone: Path, spread: Path) -> None:
    codes, outputs = processes(spread, "extract")
    assert codes == [0] * PROCESSES, outputs
    found, there = current(spread, "extract"), current(alone, "extract")
    names = sorted(path.name for path in there.glob("*.safetensors"))
    assert len(names) == 3  # one process writes two of them
    assert names == sorted(path.name for path in found.glob("*.safetensors"))
    for name in names:
        shard, expected = load_file(found / name), load_file(there / name)
        assert shard.keys() == expected.keys()
        for column, values in shard.items():  # a whole target takes other products on a CPU
            torch.testing.assert_close(values, expected[column], rtol=1e-2, atol=1e-3)


@pytest.mark.slow
def test_a_spread_target_teaches_a_spread_draft(alone: Path, spread: Path) -> None:
    """Online: an uneven number of forwards each, and evaluations by the first alone."""
    config = read_config(spread).model_dump(mode="json")
    config["recipe"]["extract"]["mode"] = "online"
    config["recipe"]["train"]["sharded"] = True
    write_json(spread / "config.json", config)
    with pytest.raises(SystemExit) as e:
        cli.main(["extract", str(spread)])
    assert e.value.code == 0
    codes, outputs = processes(spread, "train")
    assert codes == [0] * PROCESSES, outputs
    found, expected = history(spread), history(alone)
    assert len(found) == len(expected) == 30
    for here, there in zip(found, expected, strict=True):
        assert here["train/loss"] == pytest.approx(there["train/loss"], rel=1e-3)


def test_a_process_among_others_leaves_with_its_code_whatever_the_interpreters_end_does() -> None:
    code = (
        "import atexit, os; from eagle3.process import leave; atexit.register(os.abort);"
        "print('its last words'); leave(75)"
    )
    codes, outputs = run_together(["-c", code])
    assert (codes, outputs) == ([75] * PROCESSES, ["its last words\n"] * PROCESSES)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_forward_has_one_process(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With any number of processes the steps are the same: so a training may go on with another."""
    monkeypatch.setenv("WORLD_SIZE", str(count))
    dealt = []
    for n in range(count):
        monkeypatch.setenv("RANK", str(n))
        dealt += [(place, n) for place in share(range(7))]
    assert sorted(place for place, _ in dealt) == list(range(7))
    assert {n for _, n in dealt} == set(range(count))


def test_what_several_processes_cannot_do(extracted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(BadInput, match="was started in 2 processes and runs in one"):
        run_stage(replace(stage("x"), name="prepare"), extracted, io.StringIO())
    with pytest.raises(BadInput, match=r"2 processes share .* train.accumulate is 1"):
        enough_for_all(1)
    enough_for_all(2)
