"""The benchmark stage over a golden run, and its figures on hand-made counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3.bench import metrics
from eagle3.bench.metrics import Counts, Pair
from eagle3.bench.prompts import heldout_prompts
from eagle3.bench.speed import benchmark
from eagle3.decode import linear
from tests.golden import golden_draft, golden_target, successor_scores
from tests.golden_run import context, write_golden_run


def pair(plain_s: float, draft_s: float, tokens: int = 100, rounds: int = 50) -> Pair:
    return Pair(
        Counts(tokens, tokens, plain_s),
        Counts(tokens, rounds, draft_s, reached=[50, 30], accepted=[30, 20]),
    )


def test_speedup_is_the_ratio_of_tokens_per_second_over_all_prompts() -> None:
    pairs = [pair(10.0, 5.0), pair(30.0, 20.0, tokens=300, rounds=100)]
    assert metrics.speedup(pairs) == pytest.approx((400 / 25) / (400 / 40))
    assert metrics.tau(pairs) == pytest.approx(400 / 150)
    assert metrics.total(pairs).draft.acceptance_by_position == pytest.approx([0.6, 2 / 3])


def test_the_interval_is_paired_and_repeats_with_its_seed() -> None:
    alike = [pair(t, t / 2) for t in (1.0, 5.0, 20.0)]
    assert metrics.interval(alike, metrics.speedup, seed=0) == pytest.approx((2.0, 2.0))
    mixed = [pair(10.0, s) for s in (4.0, 5.0, 6.0, 8.0, 9.0, 5.0)]
    low, high = metrics.interval(mixed, metrics.speedup, seed=1)
    assert low < metrics.speedup(mixed) < high
    assert metrics.interval(mixed, metrics.speedup, seed=1) == (low, high)


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((1.1, 1.4), "faster"),
        ((0.9, 1.1), "undecided"),
        ((0.7, 0.9), "slower"),
        ((1.8, 2.0), "measurement_error"),
    ],
)
def test_a_speedup_above_tau_is_an_error(interval: tuple[float, float], expected: str) -> None:
    assert metrics.verdict(interval, tau=1.7)[0] == expected


def test_the_cost_model() -> None:
    assert metrics.predicted_speedup(2.0, one_row=10, verify=12, draft=3) == pytest.approx(20 / 15)


@pytest.fixture
def quick_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_BUDGET_SECONDS", 0.0)
    monkeypatch.setattr(linear, "_BEYOND_CACHE", 1 << 14)


@pytest.mark.usefixtures("quick_calibration")
@pytest.mark.parametrize("top_k", [1, 2])
def test_the_stage_measures_both_methods_on_every_prompt(tmp_path: Path, top_k: int) -> None:
    golden = golden_target()
    draft = golden_draft(golden.target, successor_scores(golden.perm))
    write_golden_run(tmp_path, golden, draft)
    config = {"prompts": 3, "max_new_tokens": 13, "repeats": 2, "threads": 1, "top_k": top_k}
    ctx, stream = context(tmp_path, "benchmark", benchmark=config)
    benchmark(ctx)
    result = json.loads((ctx.out / "benchmark.json").read_text())
    assert result["tau"] == pytest.approx(4.0)  # depth 3, always right
    assert result["acceptance_by_position"] == [1.0, 1.0, 1.0]
    assert result["plain"]["tokens"] == result["draft"]["tokens"] == 3 * 2 * 12
    assert (result["prompts"], len(result["rows"]), result["equal"]) == (3, 6, 6)
    assert {row["first"] for row in result["rows"]} == {"plain", "draft"}
    assert result["threads"]["used"] == 1
    assert result["linears"]["threads"] == 1
    assert set(result["cost_model"]["target_ms_by_rows"]) >= {"1", "2", "3", "4"}
    assert result["cost_model"]["predicted_speedup"] > 0
    sample = result["samples"][0]
    assert sample["equal"]
    assert sample["plain"] == sample["draft"]
    assert sample["plain"].startswith("t")
    assert ctx.summary["verdict"] == result["verdict"]
    assert len(ctx.summary["speedup_ci"]) == len(ctx.summary["tau_ci"]) == 2
    assert '"done": 6, "total": 6' in stream.getvalue()


def test_held_out_prompts_end_where_the_answer_starts(tmp_path: Path) -> None:
    golden = golden_target()
    draft = golden_draft(golden.target, successor_scores(golden.perm))
    write_golden_run(tmp_path, golden, draft)
    path = tmp_path / "regenerate" / "responses.jsonl"
    chosen = heldout_prompts(path, count=3)
    assert [prompt.id for prompt in chosen] == sorted(prompt.id for prompt in chosen)
    assert {len(prompt.ids) for prompt in chosen} == {3}
    assert len({prompt.sha256 for prompt in chosen}) == 3
    assert len(heldout_prompts(path, count=99)) == 4
