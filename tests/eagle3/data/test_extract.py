from __future__ import annotations

import errno
import json
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from eagle3.data import extract as module
from eagle3.data.capture import target_rows
from eagle3.data.extract import write_shard
from eagle3.data.features import CONVENTION, Columns, Shard
from eagle3.data.local import open_target
from eagle3.data.offline import FeatureStore
from eagle3.errors import BadInput, DiskFull, Stopped
from eagle3.run import Context, current
from eagle3.target import Target
from tests.eagle3.data.answered import responses, run_extract, write_config
from tests.eagle3.data.conftest import MakeRun, Run
from tests.tiny import build_random_target

SHARDS = {"extract": {"shard_tokens": 256}}


@pytest.fixture
def random_run(make_run: MakeRun, tmp_path: Path) -> Run:
    run = make_run(target=build_random_target(tmp_path / "random"), **SHARDS)
    run.run("resolve", "prepare", "regenerate")
    return run


def test_features_are_those_of_transformers(random_run: Run, tmp_path: Path) -> None:
    summary = random_run.run("extract")
    store = FeatureStore.open(random_run.out("extract"), verify=True)
    assert store.index.capture_layers == (2, 4, 5)
    assert store.index.convention == CONVENTION
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "random", attn_implementation="eager")
    responses = {r["id"]: r for r in random_run.lines("regenerate", "responses.jsonl")}
    seen = 0
    for split in ("train", "heldout"):
        for ref in store.samples(split):
            sample, response = store.load(ref), responses.pop(ref.id)
            assert sample.split == response["split"] == split
            assert sample.input_ids.tolist() == response["ids"]
            with torch.inference_mode():
                out = stock(sample.input_ids[None], output_hidden_states=True)
            states = out.hidden_states
            expected = torch.cat([states[i][0] for i in (2, 4, 5)], -1)
            torch.testing.assert_close(sample.features.float(), expected, rtol=1e-2, atol=1e-3)
            torch.testing.assert_close(sample.hidden.float(), states[-1][0], rtol=1e-2, atol=1e-3)
            [(start, end)] = sample.spans
            rows = torch.arange(start - 1, end)
            assert torch.equal(sample.argmax[rows], out.logits[0, rows].argmax(-1))
            torch.testing.assert_close(sample.lse[rows], out.logits[0, rows].logsumexp(-1))
            # The answer is greedy: each of its tokens is the argmax of the row before.
            assert torch.equal(sample.argmax[start - 1 : end - 1], sample.input_ids[start:end])
            assert (sample.argmax[: start - 1] == -1).all()
            assert (sample.lse[: start - 1] == 0).all()
            seen += len(sample.input_ids)
    assert not responses
    assert seen == summary["tokens"]
    assert summary["bytes"] >= seen * (4 * 64 * 2 + 12)


def test_forward_in_stretches_gives_the_same(
    random_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_run.run("extract")
    store = FeatureStore.open(random_run.out("extract"))
    [ref, *_] = store.samples("train")
    whole = store.load(ref)
    monkeypatch.setattr(Target, "rows_at_once", lambda target, batch, longest: 5)
    shutil.rmtree(random_run.out("extract"))
    random_run.run("extract")
    store = FeatureStore.open(random_run.out("extract"))
    torch.testing.assert_close(store.load(ref).features, whole.features, rtol=1e-2, atol=1e-3)


def test_a_stopped_run_keeps_its_shards(answered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(answered, quota_gb=11)
    written: list[str] = []
    contexts: list[Context] = []

    def stopping(*args: Any) -> Shard:
        written.append(args[3])
        contexts[0].stop.set()
        return write_shard(*args)

    def opening(ctx: Context) -> Target:
        contexts.append(ctx)
        return open_target(ctx)

    monkeypatch.setattr(module, "write_shard", stopping)
    monkeypatch.setattr(module, "open_target", opening)
    with pytest.raises(Stopped):
        run_extract(answered)
    assert written == ["shard-00000.safetensors"]
    monkeypatch.setattr(module, "write_shard", recording(written))
    run_extract(answered)
    assert written == ["shard-00000.safetensors", "shard-00001.safetensors"]
    FeatureStore.open(current(answered, "extract"), verify=True)


def recording(names: list[str]) -> Callable[..., Shard]:
    """`write_shard`, which also notes the name."""

    def record(*args: Any) -> Shard:
        names.append(args[3])
        return write_shard(*args)

    return record


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_damage_is_found_when_a_shard_is_first_read(answered: Path) -> None:
    write_config(answered, quota_gb=12)
    run_extract(answered)
    folder = current(answered, "extract")
    shard = folder / "shard-00000.safetensors"
    flip_a_bit(shard)
    store = FeatureStore.open(folder)
    refs = store.samples("train")
    with pytest.raises(BadInput, match="is not what was written"):
        [store.load(ref) for ref in refs if ref.shard == shard.name]
    assert [store.load(ref) for ref in refs if ref.shard != shard.name]
    with pytest.raises(BadInput, match="is not what was written"):
        FeatureStore.open(folder, verify=True)
    shard.unlink()
    with pytest.raises(BadInput, match="is missing"):
        FeatureStore.open(folder, verify=True)
    with pytest.raises(BadInput, match="holds no features"):
        FeatureStore.open(folder.parent)


def test_the_stage_makes_only_damaged_shards_anew(
    answered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(answered, quota_gb=13)
    run_extract(answered)
    folder = current(answered, "extract")
    written: list[str] = []
    before = (folder / "index.json").read_text()
    flip_a_bit(folder / "shard-00001.safetensors")
    monkeypatch.setattr(module, "write_shard", recording(written))
    run_extract(answered)
    assert written == ["shard-00001.safetensors"]
    assert (folder / "index.json").read_text() == before
    FeatureStore.open(folder, verify=True)


def test_a_directory_in_a_shards_place_is_named(answered: Path) -> None:
    write_config(answered, quota_gb=18)
    run_extract(answered)
    folder = current(answered, "extract")
    path = folder / "shard-00001.safetensors"
    path.unlink()
    path.mkdir()
    store = FeatureStore.open(folder, repair=lambda shard, problem: pytest.fail(problem))
    [ref] = [ref for ref in store.samples("train") if ref.shard == path.name][:1]
    for read in (lambda: store.load(ref), lambda: run_extract(answered)):
        with pytest.raises(BadInput, match=r"00001\.safetensors is a directory") as e:
            read()
        assert "move it away" in e.value.hint
    path.rmdir()
    run_extract(answered)
    FeatureStore.open(folder, verify=True)


@pytest.mark.parametrize("content", [b"", b'{"shards": [', b"{}", b"\xff\xfe"])
def test_a_damaged_index_is_said_and_made_anew(answered: Path, content: bytes) -> None:
    write_config(answered, quota_gb=16)
    run_extract(answered)
    index = current(answered, "extract") / "index.json"
    before = index.read_bytes()
    index.write_bytes(content)
    with pytest.raises(BadInput, match=r"index\.json is damaged") as e:
        FeatureStore.open(index.parent)
    assert "eagle3 extract RUN" in e.value.hint
    run_extract(answered)
    assert json.loads(index.read_bytes()) == json.loads(before)


def test_a_disk_that_is_too_small_is_refused_before_the_work(
    answered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 10**6))
    write_config(answered, quota_gb=3)
    with pytest.raises(DiskFull, match=r"features of [\d,]+ tokens take 0\.02 GB") as caught:
        run_extract(answered)
    assert "extract.mode to online" in caught.value.hint


def test_a_quota_is_kept(answered: Path) -> None:
    write_config(answered, quota_gb=1e-5)
    with pytest.raises(DiskFull, match=r"extract.quota_gb allows 1e-05"):
        run_extract(answered)


def test_a_disk_that_fills_up_in_the_middle_keeps_finished_shards(
    answered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def full(columns: Columns, path: Path, metadata: dict[str, str]) -> None:
        names.append(path.name)
        if len(names) == 2:
            path.write_bytes(b"half a shard")
            raise OSError(errno.ENOSPC, "No space left on device")
        save_file(columns, path, metadata)

    monkeypatch.setattr(module, "save_file", full)
    write_config(answered, quota_gb=1)
    with pytest.raises(DiskFull, match=r"shard-00001.safetensors did not fit"):
        run_extract(answered)
    journals = list(answered.glob("stages/extract/*/work/shards.jsonl"))
    [folder] = [p.parent.parent for p in journals if p.stat().st_size]
    assert {p.name for p in folder.rglob("*.*")} == {names[0], "shards.jsonl"}
    lost_power = b"\0" * 9 + b"\n"
    (folder / "work" / "shards-1.jsonl").write_bytes(lost_power)  # another process's
    run_extract(answered)
    assert names.count("shard-00000.safetensors") == 1
    FeatureStore.open(folder, verify=True)


def test_nan_is_not_stored_and_its_sample_is_named(
    answered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*args: Any) -> list[Columns]:
        rows = target_rows(*args)
        rows[1]["features"][3, 7] = float("nan")
        return rows

    monkeypatch.setattr(module, "target_rows", damaged)
    write_config(answered, quota_gb=2)
    named = module.read_sequences(responses(answered))[1]
    text = f"sample '{named.id}' has NaN or infinity in `features`, first at row 3 of"
    with pytest.raises(BadInput, match=text):
        run_extract(answered)


def test_large_numbers_are_numbers() -> None:
    large = torch.full((4, 64), 1e38)  # their sum is not a float32
    module.check_finite("large", {"features": large})
    large[2, 5] = float("inf")
    with pytest.raises(BadInput, match=r"sample 'large' .* row 2 of 4"):
        module.check_finite("large", {"features": large})
