from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3.errors import BadInput
from eagle3.stages import STAGES
from tests.eagle3.data.conftest import MakeRun, Run
from tests.tiny import Tiny, write_prompts


def by_split(run: Run) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    lines = run.lines("prepare", "prompts.jsonl")
    return (
        [p for p in lines if p["split"] == "heldout"],
        [p for p in lines if p["split"] == "train"],
    )


def test_heldout_and_training_prompts_do_not_meet(make_run: MakeRun) -> None:
    run = make_run()
    summary = run.run("resolve", "prepare")
    heldout, train = by_split(run)
    assert (len(heldout), len(train)) == (summary["heldout"], summary["train"]) == (4, 20)
    assert not {p["id"] for p in heldout} & {p["id"] for p in train}
    assert train[0]["prompt_tokens"] == 6  # <s> <user> and four words


def test_copies_are_dropped_and_a_heldout_copy_wins(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny
) -> None:
    lines = tiny.prompts(12)
    copies = [{"prompt": "  " + line["prompt"].upper().lower()} for line in lines[:3]]
    marked = [{**line, "split": "heldout"} for line in lines[:2]]
    run = make_run(source=write_prompts(tmp_path / "p.jsonl", lines + copies + marked))
    summary = run.run("resolve", "prepare")
    heldout, train = by_split(run)
    assert (summary["duplicates"], len(heldout), len(train)) == (5, 2, 10)
    texts = [" ".join(p["messages"][0]["content"].split()) for p in heldout]
    assert texts == [line["prompt"] for line in lines[:2]]


def test_limit_is_kept_and_the_choice_follows_the_seed(make_run: MakeRun) -> None:
    summary = make_run(prompts={"limit": 12}).run("resolve", "prepare")
    assert (summary["heldout"], summary["train"]) == (3, 9)
    first = make_run(prompts={"limit": 12})
    first.run("resolve", "prepare")
    again = [p["id"] for p in first.lines("prepare", "prompts.jsonl")]
    other = make_run(prompts={"limit": 12}, seed=1)
    other.run("resolve")
    other.run("prepare")
    assert [p["id"] for p in other.lines("prepare", "prompts.jsonl")] != again


def test_a_long_prompt_is_left_out_and_counted(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny
) -> None:
    lines = [*tiny.prompts(12), {"prompt": " ".join(["t9"] * 40)}]
    source = write_prompts(tmp_path / "p.jsonl", lines)
    run = make_run(source=source, prompts={"max_prompt_tokens": 30})
    assert run.run("resolve", "prepare")["too_long"] == 1
    assert "more than 30 tokens" in run.logged("prepare", "log")[-1]["message"]


def test_a_prompt_longer_than_the_context_is_refused_by_line(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny
) -> None:
    lines = [*tiny.prompts(12), {"prompt": " ".join(["t9"] * 300)}]
    run = make_run(source=write_prompts(tmp_path / "p.jsonl", lines))
    with pytest.raises(BadInput, match="line 13: the prompt has 302 tokens, the target's context"):
        run.run("resolve", "prepare")


def test_too_few_prompts(make_run: MakeRun, tmp_path: Path, tiny: Tiny) -> None:
    run = make_run(source=write_prompts(tmp_path / "p.jsonl", tiny.prompts(5)))
    with pytest.raises(BadInput, match="3 training and 2 held-out prompts are left of 5"):
        run.run("resolve", "prepare")


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_an_edited_file_is_read_again(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny, form: str
) -> None:
    source = write_prompts(tmp_path / "p.jsonl", tiny.prompts(12))
    config = make_run(source=form.format(source)).config
    before = STAGES["prepare"].config_key(config)
    write_prompts(source, tiny.prompts(13))
    assert STAGES["prepare"].config_key(config) != before
    source.unlink()
    assert STAGES["prepare"].config_key(config)["content"] == [None]
