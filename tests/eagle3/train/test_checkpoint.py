"""A training that is stopped, killed or out of disk goes on as if nothing had happened."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle3 import cli
from eagle3.errors import BadInput, Stopped
from eagle3.run import current
from eagle3.train import checkpoint
from eagle3.train.checkpoint import checkpoints, flat, latest_checkpoint
from tests.eagle3.train.stage import before_step, change_recipe, run_train, weights


@pytest.fixture(scope="module")
def uninterrupted(extracted: Path) -> dict[str, torch.Tensor]:
    run_train(extracted, "uninterrupted")
    return weights(extracted)


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


def work_of(run: Path) -> Path:
    """The resume state of the training whose checkpoint announced itself last."""
    lines = (run / "logs" / "train.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    path: str = next(e["path"] for e in reversed(events) if e["kind"] == "checkpoint")
    return (run / path).parent


@pytest.mark.slow
def test_stopped_after_every_single_step(
    extracted: Path, uninterrupted: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    before_step(lambda trainer: trainer.ctx.stop.set(), monkeypatch)
    random_state = torch.get_rng_state()
    for step in range(1, 60):
        torch.manual_seed(step)  # a new process has random numbers of its own
        try:
            summary, _ = run_train(extracted, "interrupted")
        except Stopped as e:
            assert f"checkpoint of step {step} " in str(e)  # noqa: PT017
            continue
        break
    torch.set_rng_state(random_state)
    assert summary["steps"] == step > 10
    assert same(weights(extracted), uninterrupted)
    history = (current(extracted, "train") / "history.jsonl").read_text().splitlines()
    assert [json.loads(x)["step"] for x in history] == list(range(1, step + 1))


def test_another_machine_needs_the_checkpoint_alone(
    extracted: Path, uninterrupted: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        before_step(lambda t: t.ctx.stop.set() if t.state["step"] == 17 else None, patch)
        with pytest.raises(Stopped):
            run_train(extracted, "moved")
    work = work_of(extracted)
    assert len(checkpoints(work)) == 2
    for path in work.iterdir():
        if path != latest_checkpoint(work):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    run_train(extracted, "moved")
    assert same(weights(extracted), uninterrupted)


def test_a_draft_of_the_whole_vocabulary_goes_on(
    extracted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file has no `d2t` and no `t2d`."""
    change_recipe(extracted, draft_vocab_size=1_000_000)
    try:
        with monkeypatch.context() as patch:
            before_step(lambda t: t.ctx.stop.set() if t.state["step"] == 5 else None, patch)
            with pytest.raises(Stopped):
                run_train(extracted, "whole")
        summary, _ = run_train(extracted, "whole")
    finally:
        change_recipe(extracted, draft_vocab_size=48)
    assert summary["steps"] > 5
    assert "d2t" not in weights(extracted)


def test_a_full_disk_leaves_the_last_checkpoint(
    extracted: Path,
    uninterrupted: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The disk is full in the middle of the second checkpoint, at step 6; the first is step 3's."""

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        save_file(tensors, path)
        if any("checkpoint-000003" in p.name for p in path.parent.parent.iterdir()):
            os.truncate(path, path.stat().st_size // 2)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    change_recipe(extracted, warmup_fraction=0.06)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save_file", full)
            with pytest.raises(SystemExit) as e:
                cli.main(["train", str(extracted)])
        assert e.value.code == 4
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["reason"] == "disk_full"
        work = work_of(extracted)
        assert [path.name for path in checkpoints(work)] == ["checkpoint-000003"]
        assert not (work / checkpoint.WRITING).exists()

        before_step(lambda t: os.kill(os.getpid(), signal.SIGTERM), monkeypatch)
        with pytest.raises(SystemExit) as e:
            cli.main(["train", str(extracted)])
        assert e.value.code == 75
        assert "going on from the checkpoint of step 3" in capsys.readouterr().out
        assert latest_checkpoint(work) == work / "checkpoint-000004"
    finally:
        change_recipe(extracted, warmup_fraction=0.05)


def test_a_checkpoint_of_another_recipe_is_refused(
    extracted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        before_step(lambda trainer: trainer.ctx.stop.set(), patch)
        with pytest.raises(Stopped):
            run_train(extracted, "refused")
    change_recipe(extracted, learning_rate=0.25, checkpoint_every=5)
    try:
        with pytest.raises(BadInput, match=r"train.learning_rate was 0.005 and is 0.25") as e:
            run_train(extracted, "refused")
        assert "checkpoint_every" not in str(e.value)  # decides nothing
    finally:
        change_recipe(extracted, learning_rate=5e-3, checkpoint_every=3)


def test_nested_settings_have_dotted_names() -> None:
    assert flat({"a": {"b": {"c": 1}, "d": [2]}, "e": None}) == {"a.b.c": 1, "a.d": [2], "e": None}
