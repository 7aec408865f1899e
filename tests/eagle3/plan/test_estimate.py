"""What a plan says, and that it moves the way it must."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.config import Recipe, load_recipe
from eagle3.data.capture import target_rows
from eagle3.data.features import TokenSequence
from eagle3.load import load_model
from eagle3.plan import (
    Plan,
    TargetShape,
    bytes_per_token,
    describe,
    hardware,
    make_plan,
    modes,
    workload,
)
from eagle3.target import Target
from tests.tiny import build_random_target

LLAMA_8B = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
}
LLAMA_70B = {
    **LLAMA_8B,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
}


def recipe(**overrides: Any) -> Recipe:
    return load_recipe("standard", overrides)


def plan(
    raw: dict[str, Any] = LLAMA_8B,
    gpu: str = "h100",
    count: int = 8,
    overrides: dict[str, Any] | None = None,
    prompts: int = 100_000,
    **more: Any,
) -> Plan:
    asked = recipe(**(overrides or {}))
    work = workload(asked, prompts, 64, 200)
    return make_plan(asked, TargetShape.from_config(raw), work, hardware(gpu, count), **more)


def test_published_sizes() -> None:
    assert plan().target.parameters == 8_030_261_248
    assert plan(LLAMA_70B).target.parameters == 70_553_706_496


def test_a_token_budget_bounds_what_is_written() -> None:
    quick, whole = load_recipe("quick"), load_recipe("standard")
    work = workload(quick, 1200, 64)
    assert work.response_tokens == 24000 + 64 * 96
    assert work.tokens > work.response_tokens
    assert workload(whole, 1200, 64).response_tokens == (2 * 1200 + 64) * 128
    assert 0 < work.supervised < 1


def test_long_samples_are_counted_as_training_cuts_them() -> None:
    cut = workload(recipe(train={"max_length": 256}), 100, 8, 200)
    assert cut.sample_tokens == 256
    assert cut.tokens > cut.train_tokens


def test_answers_that_are_given_are_not_written() -> None:
    given = workload(recipe(regenerate={"mode": "given"}, train={"max_length": 1024}), 100, 8, 24)
    assert given.response_tokens == 8 * 128
    assert given.tokens == 100 * 1024 + 8 * (128 + 24)


def test_half_precision_takes_less_memory_and_time() -> None:
    exact, half = (
        plan(overrides={"train": {"precision": p, "batch_tokens": 2**17}})
        for p in ("float32", "bfloat16")
    )
    assert half.mode("offline-ddp").training.total < exact.mode("offline-ddp").training.total
    assert half.mode("offline-ddp").train_hours < exact.mode("offline-ddp").train_hours


def test_features_take_what_the_store_writes(tmp_path: Path) -> None:
    build_random_target(tmp_path, layers=7)
    target = Target.load(tmp_path)
    sequence = TokenSequence("a", "train", torch.arange(5, 25, dtype=torch.int32), [(4, 20)])
    for top_k in (None, 8):
        [columns] = target_rows(target, [sequence], top_k)
        stored = sum(rows.nbytes for rows in columns.values())
        assert stored == 20 * bytes_per_token(target.hidden_size, top_k)
    found = plan()
    assert found.store_bytes == found.workload.tokens * found.bytes_per_token
    offline, online = found.mode("offline-ddp"), found.mode("online-ddp")
    assert offline.disk_bytes - online.disk_bytes == found.store_bytes
    assert online.disk_bytes > found.draft_bytes


def test_the_target_is_planned_in_the_type_that_it_runs_in() -> None:
    assert str(inspect.signature(load_model).parameters["dtype"].default) == "torch.float32"
    assert plan(gpu="cpu", count=2).target_bytes == 4 * 8_030_261_248
    assert plan().target_bytes == 2 * 8_030_261_248


def test_a_target_too_large_for_one_device_is_spread() -> None:
    found = plan(LLAMA_70B)
    assert "needs" in found.mode("online-ddp").why_not
    assert found.first_fit == "offline-fsdp"
    assert found.recommended is not None
    assert found.mode(found.recommended).sharding == "fsdp"
    whole, spread = found.mode("online-ddp").training, found.mode("online-fsdp").training
    assert whole.target == 2 * found.target.parameters
    assert whole.target / 8 < spread.target < whole.target / 6  # a part, and one layer gathered
    assert found.mode("streamed-fsdp").extracting == found.mode("streamed-ddp").extracting


def test_a_disk_too_small_rules_the_store_out() -> None:
    found = plan(disk_bytes=10**11)
    assert found.store_bytes > 10**11
    assert not any(m.fits for m in found.modes if m.features == "offline")
    assert found.recommended is not None
    assert found.mode(found.recommended).features != "offline"


def test_a_batch_that_does_not_fit_is_taken_in_parts() -> None:
    large = {"train": {"batch_tokens": 2**20, "ttt_steps": 7, "draft_vocab_size": 32000}}
    found = plan(overrides=large, count=1)
    mode = found.mode("offline-single")
    assert mode.fits
    assert mode.accumulate > 1
    assert mode.tokens_per_step * mode.accumulate == pytest.approx(2**20, rel=0.1)


def test_nothing_fits_nothing_is_recommended() -> None:
    found = plan(LLAMA_70B, gpu="l4", count=1)
    assert found.recommended is found.first_fit is None
    assert "No mode fits" in describe(found)


def test_more_devices_take_less_time_and_more_data_more() -> None:
    hours = [plan(count=n).mode("offline-ddp").hours for n in (2, 4, 8)]
    assert hours == sorted(hours, reverse=True)
    assert plan(prompts=200_000).hours > 1.8 * plan(prompts=100_000).hours
    assert plan(gpu="h100").hours < plan(gpu="a100").hours


def test_money_is_hours_times_the_price_of_all_the_hardware() -> None:
    found = plan(price_per_hour=24.0)
    assert found.money == pytest.approx(24 * found.hours)
    assert sum(s.money or 0 for s in found.stages) == pytest.approx(found.money)
    assert plan().money is None


def test_a_server_writes_with_every_device() -> None:
    alone = plan()
    served = plan(
        overrides={"regenerate": {"engine": "openai", "base_url": "http://127.0.0.1:8000/v1"}}
    )
    assert alone.stages[0].devices == 1
    assert served.stages[0].devices == 8
    assert served.stages[0].tokens_per_s > alone.stages[0].tokens_per_s


def test_experts_cost_what_a_token_uses() -> None:
    moe = {
        **LLAMA_8B,
        "model_type": "mixtral",
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }
    found = plan(moe)
    assert found.target.active_parameters < found.target.parameters / 3
    extract = {s.name: s for s in found.stages}["extract"]
    assert extract.hours < 3 * {s.name: s for s in plan().stages}["extract"].hours
    assert "a token" in describe(found).splitlines()[0]


def test_one_device_has_no_ddp_and_no_stream() -> None:
    assert [m.name for m in plan(count=1).modes] == ["offline-single", "online-single"]


@pytest.mark.parametrize("world", [2, 3, 8, 64])
@pytest.mark.parametrize("steps", [3, 7, 16])
@pytest.mark.parametrize("batch", [64, 8192])
def test_readers_and_trainers_are_split_as_well_as_can_be(
    world: int, steps: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"train": {"ttt_steps": steps, "batch_tokens": batch}}
    found = plan(overrides=changes, count=world).mode("streamed-ddp").train_hours
    each = []
    for readers in range(1, world):
        monkeypatch.setattr(modes, "_split", lambda s, n=readers: (s.world - n, n))
        each.append(plan(overrides=changes, count=world).mode("streamed-ddp").train_hours)
    assert found == min(each)


def test_any_number_of_devices_is_planned_at_once() -> None:
    assert plan(count=10**12).hours > 0


def test_a_plan_says_what_it_does_not_know() -> None:
    said = " ".join(plan().assumptions)
    assert "asks one question" in said
    assert "how much is free is not known" in said
    given = plan(overrides={"regenerate": {"mode": "given"}}, disk_bytes=10**12)
    assert "every sample is of" in " ".join(given.assumptions)
    assert "how much is free" not in " ".join(given.assumptions)


def test_the_text_names_what_it_rests_on() -> None:
    text = describe(plan(price_per_hour=24.0))
    assert "recommended" in text
    assert "first that fits" in text
    assert "https://www.nvidia.com" in text
    assert "money" in text
    widths = {len(line) for line in text.splitlines() if line.startswith("---")}
    assert max(widths) <= 110


def test_a_device_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match="expected one of b200, h200"):
        hardware("abacus")
