"""`eagle3 compare` on a tiny target that drafts can learn, from nothing to the table."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from eagle3.bench.tasks import Question
from eagle3.cli import main
from eagle3.compare import methods
from eagle3.compare.ask import PLAIN, pick
from eagle3.compare.compare import common_tree
from eagle3.compare.report import _point, markdown
from eagle3.compare.result import (
    BudgetSaid,
    Cell,
    Comparison,
    Estimate,
    MethodResult,
    PlainLoop,
    TaskInfo,
)
from eagle3.config import Recipe, RunConfig
from eagle3.errors import BadInput
from eagle3.progress import Progress
from eagle3.run import Context
from tests.tiny import build_permutation_target, write_prompts

ASKED = ("pld", "medusa", "eagle3")
RECIPE = """
name: tiny
prompts: {{source: {prompts}, heldout: 8}}
regenerate: {{max_new_tokens: 12}}
extract: {{shard_tokens: 512}}
train: {{ttt_steps: 3, draft_vocab_size: 64, learning_rate: 5.0e-3, batch_tokens: 96,
  eval_samples: 4}}
benchmark: {{threads: 1, max_new_tokens: 12}}
prove: {{max_new_tokens: 12}}
"""


def compare(*arguments: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(["compare", *arguments])
    assert isinstance(end.value.code, int)
    return end.value.code


def write_task(path: Path, prompts: list[list[str]]) -> Path:
    lines = [{"question_id": n, "turns": turns} for n, turns in enumerate(prompts)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("quick_calibration")
def test_from_a_target_to_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = build_permutation_target(tmp_path / "target", layers=7, context=64)
    prompts = write_prompts(tmp_path / "prompts.jsonl", tiny.prompts(40))
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE.format(prompts=prompts))
    words = [f"t{word}" for word in tiny.order]
    two = [[" ".join(words[n : n + 3]), words[n + 20]] for n in range(5)]
    write_task(tmp_path / "turns.jsonl", two)
    # in a context of 64 the last question leaves no room, and the one before it room for 4 tokens
    long = [[" ".join((words * 2)[n : n + size])] for n, size in enumerate((3, 3, 58, 70))]
    write_task(tmp_path / "long.jsonl", long)
    run = tmp_path / "run"
    tasks = f"{tmp_path / 'turns.jsonl'},{tmp_path / 'long.jsonl'}"
    arguments = [
        "--methods", ",".join(ASKED), "--tasks", tasks,
        "--prompts", "4", "--max-new-tokens", "10", "--budget-tokens", "16000",
    ]  # fmt: skip
    first = [f"file://{tiny.path}", "--run", str(run), "--recipe", str(recipe), *arguments]
    assert compare(*first) == 0
    said = capsys.readouterr().out
    assert "parameters trained for" in said
    assert "the baseline is" in said
    folder = run / "compare"
    found = json.loads((folder / "compare.json").read_text())
    jsonschema.validate(found, json.loads((folder / "compare.schema.json").read_text()))
    result = Comparison.model_validate(found)
    check(result)
    text = (folder / "compare.md").read_text()
    assert text in said
    assert "| medusa |" in text
    assert {path.suffix for path in folder.iterdir()} >= {".svg", ".png"}

    # Again, by the run's name: nothing is trained, and nothing asked
    assert compare(str(run), *arguments) == 0
    again = Comparison.model_validate_json((folder / "compare.json").read_text())
    assert (again.baseline, again.asked) == (result.baseline, result.asked)
    assert all(m.training is None or m.training.cached for m in again.methods)

    # Every method, sampled
    more = ["--methods", "all", "--temperature", "1", "--prompts", "1", "--budget-tokens", "2000"]
    assert compare(str(run), *arguments[2:], *more) == 0
    sampled = Comparison.model_validate_json((folder / "compare.json").read_text())
    trainings = {m.name: m.training for m in sampled.methods}
    assert list(trainings) == [name for name in methods.METHODS if name not in methods.LOSSY]
    assert {name for name, training in trainings.items() if training is None} == {
        "pld",
        "lookahead",
    }
    eagle, eagle2 = trainings["eagle"], trainings["eagle2"]
    assert eagle is not None
    assert eagle2 is not None
    assert eagle.sha256 == eagle2.sha256
    assert (eagle.cached, eagle2.cached) == (False, True)


def check(result: Comparison) -> None:
    assert [m.name for m in result.methods] == list(ASKED)
    turns, long = result.tasks
    assert (turns.name, turns.questions, turns.asked, turns.left_out) == ("turns", 5, 4, {})
    assert (long.asked, list(long.left_out)) == (3, ["3"])
    assert "no room" in long.left_out["3"]
    short = next(a for a in result.asked if a.task == "long" and a.question == "2")
    assert {row.tokens for row in short.rows} == {3}
    by_name = {m.name: m for m in result.methods}
    for method in result.methods:
        assert all(cell.equal == cell.answers for cell in method.cells), method.name
        assert method.tau.ci[0] <= method.tau.value <= method.tau.ci[1]
    assert by_name["pld"].training is None
    for name in ("medusa", "eagle3"):
        training = by_name[name].training
        assert training is not None
        assert 16_000 <= training.tokens < 17_000
        assert by_name[name].tau.value > 2
    rows = [row for asked in result.asked for row in asked.rows]
    assert len({row.place for row in rows if row.method == PLAIN}) > 1
    assert {len(asked.rows) for asked in result.asked if asked.task == "turns"} == {2 * 4}
    assert set(result.baseline.tokens_per_s) == {"engine", "bare", "transformers"}
    assert result.versions["torch"]
    assert result.hardware["cores"]


def test_questions_are_chosen_by_seed_and_stay_in_order() -> None:
    questions = [Question(str(n), "", ("x",)) for n in range(20)]
    some = pick(questions, 5, seed=1)
    assert some == sorted(some, key=lambda q: int(q.id))
    assert some == pick(questions, 5, seed=1) != pick(questions, 5, seed=2)
    assert pick(questions, 99, seed=1) == questions


def cell(verdict: str, **more: Any) -> Cell:
    facts: dict[str, Any] = {
        "task": "math", "prompts": 3, "speedup": Estimate(value=3.0, ci=(2.9, 3.1)),
        "tau": Estimate(value=2.0, ci=(1.9, 2.1)), "tokens_per_s": 1.0, "tokens": 1, "rounds": 1,
        "seconds": 1.0, "acceptance_by_position": [], "latency": None, "verdict": verdict,
        "why": "it cannot be", "equal": 3, "answers": 3,
    }  # fmt: skip
    return Cell(**{**facts, **more})


def test_a_speedup_above_tau_is_not_printed() -> None:
    assert _point(cell("measurement_error")) == "refused / 2.00"
    assert _point(cell("faster")) == "3.00x / 2.00"
    assert _point(cell("no_tokens")) == "–"
    method = result_of(cell("faster"), cell("measurement_error"))
    text = markdown(comparison(method))
    assert "it cannot be" in text
    assert text.count("refused /") == 2, "the task, and the mean"
    assert "2.90 to 3.10" in text, "the interval of the task that stands"
    assert "2.40 to 2.60" not in text.split("| tau |")[0].split("Intervals")[1]


def test_a_lossy_method_is_marked() -> None:
    method = result_of(cell("faster"), cell("faster"))
    lossy = method.model_copy(update={"settings": {"lossless": False}})
    assert "lossy" not in markdown(comparison(method))
    assert "| pld (lossy) |" in markdown(comparison(lossy))
    assert "pld is lossy: its guesses are not verified exactly" in markdown(comparison(lossy))


def result_of(*cells: Cell) -> MethodResult:
    estimate = Estimate(value=2.5, ci=(2.4, 2.6))
    return MethodResult(name="pld", settings={}, cells=list(cells), speedup=estimate, tau=estimate)


def comparison(method: MethodResult) -> Comparison:
    return Comparison(
        target="t", weights_sha256="0", temperature=0.0, max_new_tokens=8, seed=0,
        budget=BudgetSaid(seconds=1.0, tokens=None),
        tasks=[TaskInfo(name=name, source="demo", questions=3, asked=3, left_out={})
               for name in ("math", "code")],
        baseline=PlainLoop(loop="bare", tokens_per_s={"bare": 1.0}), plain={"math": 1.0},
        methods=[method], asked=[], hardware={"cpu": "c"},
        versions={"torch": "2", "transformers": "5"}, commit=None, threads=1, device="cpu",
        dtype="float32",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", [name for name in methods.METHODS if name != "medusa_typical"]),
        ("pld, eagle3,pld", ["pld", "eagle3"]),
        ("medusa_typical", ["medusa_typical"]),
    ],
)
def test_methods_by_name(text: str, expected: list[str]) -> None:
    assert methods.named(text) == expected


@pytest.mark.parametrize("text", ["eagle9", "", "all,pld"])
def test_an_unknown_method_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="unknown"):
        methods.named(text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere", "--methods", "pld"], "target 'nowhere' is not a reference"),
        (["demo", "--methods", "eagle9"], "unknown eagle9"),
        (["demo", "--tasks", "nowhere.jsonl"], "there is no task nowhere.jsonl"),
        (["demo", "--recipe", "nowhere"], "--recipe: recipe 'nowhere' does not exist"),
        (["demo", "--budget", "0"], "0: expected 1 or more"),
        (["demo", "--budget", "inf"], "inf: expected 1 or more"),
        (["demo", "--budget-tokens", "many"], "invalid int value: 'many'"),
        (["demo", "--max-new-tokens", "1"], "1: expected 2 or more"),
        (["demo", "--temperature", "-1"], "-1: expected 0 or more"),
        (["demo", "--temperature", "nan"], "nan: expected 0 or more"),
    ],
)
def test_bad_usage_exits_with_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert compare(*arguments) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_directory_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "file"
    taken.touch()
    assert compare("demo", "--run", str(taken)) == 2
    assert "is a file\nexpected a directory or a new name" in capsys.readouterr().err
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{")
    assert compare("demo", "--run", str(run)) == 2
    assert "config.json: config: Invalid JSON" in capsys.readouterr().err
    assert compare(str(run), "--run", "other") == 2
    assert "leave out --run and --recipe" in capsys.readouterr().err
    assert (run / "config.json").read_text() == "{"


@pytest.mark.parametrize(
    ("benchmark", "expected"),
    [
        ({"depth": 2, "top_k": 4, "total_tokens": 6}, ((2, 4, 6), (2, 4, 6))),
        ({"depth": "auto", "top_k": 2}, ((3, 2, 6), (4, 2, 7))),
        ({"depth": "auto", "top_k": "auto", "total_tokens": "auto"}, ((3, 1, 3), (4, 2, 7))),
    ],
)
def test_a_tree_that_is_left_open_is_the_benchmarks_or_the_default(
    tmp_path: Path, benchmark: dict[str, Any], expected: tuple[tuple[int, ...], ...]
) -> None:
    recipe = Recipe.model_validate({"name": "open", "benchmark": benchmark})
    config = RunConfig(target="demo", prompts=recipe.prompts, recipe=recipe)
    said = io.StringIO()
    progress = Progress("compare", tmp_path / "log.jsonl", said)
    ctx = Context(tmp_path, "compare", config, tmp_path, {}, progress, threading.Event())
    stage = tmp_path / "stages" / "benchmark"
    (stage / "digest").mkdir(parents=True)
    for shape in expected:
        found = common_tree(ctx)
        assert (found.depth, found.top_k, found.kept) == shape
        summary = {"depth": 4, "top_k": 2, "total_tokens": 7}  # from here on it has run
        manifest = {"outputs_digest": "d", "summary": summary}
        (stage / "digest" / "manifest.json").write_text(json.dumps(manifest))
        (stage / "current").write_text("digest")
    assert "methods are compared at depth" in said.getvalue()
