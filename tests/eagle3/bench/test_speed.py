"""The benchmark stage over a golden run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3.bench import speed
from eagle3.bench.cost import Costs
from eagle3.bench.prompts import heldout_answers, heldout_prompts
from eagle3.bench.speed import benchmark
from eagle3.decode.tree import Shape
from eagle3.proof.stage import shape
from eagle3.stages import STAGES
from tests.golden import golden_draft, golden_target, successor_scores
from tests.golden_run import context, write_golden_run


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
    assert result["baseline"]["loop"] in result["baseline"]["tokens_per_s"]
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


@pytest.mark.usefixtures("quick_calibration")
def test_the_tree_may_be_chosen_and_is_then_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft that is right at the second guess, where rows and draft steps cost nothing."""
    free = Costs(dict.fromkeys(range(1, 65), 1.0), dict.fromkeys((1, 2, 4, 8), (0.0, 0.0)))
    monkeypatch.setattr(speed, "measure_costs", lambda *_: free)
    golden = golden_target()
    scores = successor_scores(golden.perm) + 1.1 * successor_scores(golden.perm, shift=1)
    draft = golden_draft(golden.target, scores)
    write_golden_run(tmp_path, golden, draft, prompts=6, answer_tokens=12)
    config = {"prompts": 3, "max_new_tokens": 13, "threads": 1, "depth": "auto", "top_k": 2,
              "total_tokens": "auto"}  # fmt: skip
    ctx, stream = context(tmp_path, "benchmark", benchmark=config)
    benchmark(ctx)
    result = json.loads((ctx.out / "benchmark.json").read_text())
    chosen = result["choice"]["chosen"]
    assert result["choice"]["answers"] == 3
    assert not result["choice"]["plain_is_best"]
    assert result["shape"] == {key: chosen[key] for key in ("depth", "top_k", "total_tokens")}
    assert chosen["top_k"] == 2
    assert result["tau"] == pytest.approx(chosen["tau"], rel=0.2)
    assert "measured:" in stream.getvalue()
    names = ("depth", "top_k", "total_tokens")
    assert {name: ctx.summary[name] for name in names} == result["shape"]

    prove, _ = context(tmp_path, "prove", benchmark=config)
    prove.inputs["benchmark"] = ctx.out
    manifest = {"summary": ctx.summary, "outputs_digest": ""}
    (ctx.out / "manifest.json").write_text(json.dumps(manifest))
    assert shape(prove) == Shape(*result["shape"].values())
    assert STAGES["prove"].also_reads(prove.config) == ("benchmark",)


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
    others = {answer.id for answer in heldout_answers(path, after=3, count=9)}
    assert len(others) == 1
    assert others.isdisjoint(prompt.id for prompt in chosen)
    assert len(heldout_answers(path, after=4, count=9)) == 4
