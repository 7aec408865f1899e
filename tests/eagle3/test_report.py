"""The report says what the stages measured, and says it plainly when the draft does not help."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eagle3.config import PromptsConfig, RunConfig, load_recipe
from eagle3.errors import BadInput
from eagle3.report import write_report
from eagle3.report.markdown import table
from eagle3.run import Context, Stage, current, run_stage, write_json

BENCH = {
    "plain_tokens_per_s": 16.0,
    "draft_tokens_per_s": 20.0,
    "speedup": 1.25,
    "speedup_ci": [1.1, 1.4],
    "tau": 1.62,
    "tau_ci": [1.5, 1.7],
    "acceptance_by_position": [0.4, 0.3, 0.2],
    "depth": 3,
    "prompts": 8,
    "verdict": "faster",
}
PARITY: dict[str, Any] = {
    "depth": 2,
    "prompts": 8,
    "tokens": 256,
    "dtype": "float32",
    "tau": 1.6,
    "by_position": [0.41, 0.3],
    "engines": [
        {
            "engine": "native",
            "version": "0.1.0",
            "broken": None,
            "said": "agrees at every position",
            "tau": 1.61,
            "positions": [{"found": 0.42, "agrees": True}, {"found": 0.31, "agrees": True}],
            "text": {"equal": 8, "prompts": 8},
        },
        {
            "engine": "llamacpp",
            "version": "2026.1",
            "broken": "acceptance",
            "said": "position 0 accepts 10.0%, training says 41.0%",
            "tau": 1.1,
            "positions": [{"found": 0.1, "agrees": False}],
            "text": {"equal": 8, "prompts": 8},
        },
    ],
}
PARITY_SUMMARY = {
    "holds": False,
    "said": "No parity: llamacpp, acceptance: position 0 accepts 10.0%, training says 41.0%",
    "left_out": {"vllm": "it is too large"},
}
COST = {
    "target_ms_by_rows": {"1": 50.0, "2": 51.0, "3": 52.0, "4": 55.0},
    "draft_step_ms": 5.0,
    "draft_steps": 3,
    "verified_rows": 4,
    "predicted_speedup": 1.16,
}


def write_run(run: Path, bench: dict[str, Any], price: float | None = None) -> RunConfig:
    config = RunConfig(target="demo", recipe=load_recipe("quick"), price_per_hour=price)
    run.mkdir(exist_ok=True)
    write_json(run / "config.json", config.model_dump(mode="json"))

    def finish(summary: dict[str, Any], **files: Any) -> Callable[[Context], None]:
        def function(ctx: Context) -> None:
            for name, value in files.items():
                text = value if isinstance(value, str) else json.dumps(value)
                (ctx.out / name.replace("__", ".")).write_text(text)
            ctx.summary |= summary

        return function

    history = [
        {"step": 1, "train/loss": 9.0, "train/acc_step_0": 0.1},
        {"step": 2, "train/loss": 5.0, "train/acc_step_0": 0.3, "eval/acceptance_length": 1.5},
    ]
    train = {
        "steps": 2,
        "best_step": 2,
        "acceptance_length": 1.6,
        "acceptance_by_position": [0.4, 0.3, 0.2],
        "coverage": 0.93,
        "train_tokens": 1000,
    }
    target = {"resolved": "demo@sha256:abc", "weights_sha256": "ab" * 32}
    proof = {"verdict": "lossless", "prompts": 16, "tokens": 1024, "mismatches": 0}
    stages = {
        "resolve": finish(target, target__json=target),
        "train": finish(train, history__jsonl="".join(json.dumps(row) + "\n" for row in history)),
        "parity": finish(PARITY_SUMMARY, parity__json=PARITY),
        "benchmark": finish(bench, benchmark__json={"cost_model": COST, "why": "the reason"}),
        "prove": finish({**proof, "near_ties": 0, "dtype": "float32"}, certificate__json={}),
    }
    for name, function in stages.items():
        run_stage(Stage(name, (), lambda c: 0, function), run, io.StringIO())
    return config


def test_report_has_the_figures_the_pictures_and_the_command(tmp_path: Path) -> None:
    folder = write_report(tmp_path, write_run(tmp_path, BENCH, price=3600.0))
    text = (folder / "report.md").read_text()
    assert "is the target's own, token for token: 1024 tokens of 16 held-out prompts" in text
    assert "Decoding with the draft is faster: 1.25x (95% interval 1.10 to 1.40)" in text
    assert "| tau at which this machine breaks even | 1.40 |" in text
    assert '"method": "eagle3"' in text
    page = (folder / "report.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 2
    assert 'src="http' not in page
    assert (folder / "loss.png").stat().st_size > 5000
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["speedup"] == 1.25
    assert metrics["lossless"] == 1


def test_a_draft_that_slows_decoding_down_is_called_slow(tmp_path: Path) -> None:
    bench = BENCH | {"speedup": 0.9, "speedup_ci": [0.8, 0.95], "verdict": "slower"}
    text = (write_report(tmp_path, write_run(tmp_path, bench)) / "report.md").read_text()
    assert "SLOWER on this machine: 0.90x" in text
    assert "The reason." in text
    assert "No price per hour is set" in text


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no stage has run"):
        write_report(tmp_path, RunConfig(target="demo", recipe=load_recipe("quick")))


def test_a_stage_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    config = write_run(tmp_path, BENCH)
    (current(tmp_path, "prove") / "manifest.json").unlink()
    text = (write_report(tmp_path, config) / "report.md").read_text()
    assert "Decoding with the draft is faster" in text
    assert "token for token" not in text


def test_a_name_is_not_markup(tmp_path: Path) -> None:
    config = write_run(tmp_path, BENCH)
    name = "<img src=x onerror=alert(1)>|`a`"
    config = config.model_copy(update={"prompts": PromptsConfig(source=name)})
    folder = write_report(tmp_path, config)
    for file in ("report.md", "report.html"):
        assert "<img src=x" not in (folder / file).read_text()
    assert (
        "| prompts | &lt;img src=x onerror=alert(1)>\\|\\`a\\` |"
        in (folder / "report.md").read_text()
    )


def test_a_bar_ends_no_cell() -> None:
    lines = ["| a | b |", "| --- | --- |", "| x\\|y | 1 |"]
    assert table(["a", "b"], [["x|y", 1]]) == lines


def test_engines_are_held_against_training_and_the_broken_link_is_named(tmp_path: Path) -> None:
    folder = write_report(tmp_path, write_run(tmp_path, BENCH))
    text = (folder / "report.md").read_text()
    assert "| native 0.1.0 | 1.61 | 42.0% | 31.0% | 8 of 8 identical | agrees |" in text
    assert "| llamacpp 2026.1 | 1.10 | 10.0% (apart) | – | 8 of 8 identical | broken: " in text
    assert "llamacpp: acceptance: position 0 accepts 10.0%, training says 41.0%" in text
    assert "vllm was not tried: it is too large." in text
    assert text.index("No parity: llamacpp") < text.index("## Result")
    assert "8 of 8 identical" in (folder / "report.html").read_text()
