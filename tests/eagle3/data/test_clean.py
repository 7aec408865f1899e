from __future__ import annotations

from pathlib import Path

import pytest

from eagle3.errors import BadInput
from tests.eagle3.data.conftest import MakeRun, Run
from tests.tiny import Tiny, write_prompts


def chain(tiny: Tiny, start: int, words: int) -> str:
    return " ".join(f"t{tiny.order[(start + j) % len(tiny.order)]}" for j in range(words))


def warnings(run: Run) -> str:
    return "\n".join(line["message"] for line in run.logged("prepare", "log"))


@pytest.fixture
def lines(tiny: Tiny) -> list[dict[str, str]]:
    return tiny.prompts(20, words=4)


def test_a_near_copy_is_counted_and_named(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny, lines: list[dict[str, str]]
) -> None:
    long = chain(tiny, 0, 40)
    lines += [{"prompt": long}, {"prompt": f"{long} t9"}]
    run = make_run(source=write_prompts(tmp_path / "p.jsonl", lines))
    assert run.run("resolve", "prepare")["near_duplicates"] == 1
    assert "p.jsonl, line 22 nearly repeats line 21 (97%)" in warnings(run)
    kept = make_run(source=tmp_path / "p.jsonl", prompts={"near_duplicates": None})
    assert kept.run("prepare")["near_duplicates"] == 0


def test_a_heldout_near_copy_wins(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny, lines: list[dict[str, str]]
) -> None:
    long = chain(tiny, 0, 40)
    lines += [{"prompt": f"{long} t9"}]
    lines += [{"prompt": text, "split": "heldout"} for text in (long, chain(tiny, 5, 3))]
    run = make_run(source=write_prompts(tmp_path / "p.jsonl", lines))
    run.run("resolve", "prepare")
    texts = {p["messages"][0]["content"]: p["split"] for p in run.lines("prepare", "prompts.jsonl")}
    assert texts[long] == "heldout"
    assert f"{long} t9" not in texts


def test_training_prompts_that_hold_a_heldout_or_excluded_one_are_counted_and_named(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny, lines: list[dict[str, str]]
) -> None:
    question, held = chain(tiny, 3, 10), chain(tiny, 30, 10)
    lines += [
        {"prompt": f"t7 t7 t7 {question} t8 t8 t8 t8 t8"},
        {"prompt": f"t9 t9 t9 t9 t9 t9 t9 {held}"},
        {"prompt": held, "split": "heldout"},
        {"prompt": "t5 t5 t6", "split": "heldout"},
    ]
    tests = write_prompts(tmp_path / "bench.jsonl", [{"turns": [question], "question_id": 1}])
    source = write_prompts(tmp_path / "p.jsonl", lines)
    run = make_run(source=source, prompts={"exclude": [{"source": str(tests)}]})
    summary = run.run("resolve", "prepare")
    assert (summary["contaminated"], summary["excluded"], summary["train"]) == (2, 1, 20)
    assert "line 21 holds the held-out or excluded" in warnings(run)
    assert "bench.jsonl, line 1;" in warnings(run)


def test_a_share_of_bad_rows_is_left_out_counted_and_named(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny, lines: list[dict[str, str]]
) -> None:
    source = write_prompts(tmp_path / "p.jsonl", [*lines, {"text": "what?"}])
    with pytest.raises(BadInput, match="line 21: has text") as e:
        make_run(source=source).run("resolve")
    assert "prompts.bad_rows" in e.value.hint
    run = make_run(source=source, prompts={"bad_rows": 0.05})
    assert run.run("resolve", "prepare")["unreadable"] == 1
    assert "line 21: has text" in warnings(run)


def test_the_summary_says_what_the_sets_held(
    make_run: MakeRun, tmp_path: Path, lines: list[dict[str, str]]
) -> None:
    run = make_run(source=write_prompts(tmp_path / "p.jsonl", lines))
    summary = run.run("resolve", "prepare")
    assert summary["source"].endswith("p.jsonl")
    assert len(summary["content"][0]) == 64
