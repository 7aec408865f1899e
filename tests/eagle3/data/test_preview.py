from __future__ import annotations

from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import Tensor

from eagle3 import vocab
from eagle3.cli import main
from eagle3.data.coverage import answer_share, mass_share
from eagle3.data.pieces import pieces
from eagle3.data.preview import Preview, look
from eagle3.data.preview_view import page, terminal
from eagle3.data.records import Response
from eagle3.errors import BadInput
from eagle3.run import current
from eagle3.target import Target
from tests.eagle3.data.chats import tokenizer
from tests.eagle3.data.conftest import DATA_STAGES, MakeRun, Run
from tests.eagle3.train.stage import run_train, weights
from tests.tiny import Tiny, write_prompts

GIVEN = {"mode": "given", "max_new_tokens": 12, "batch_size": 8}


def answered(tmp_path: Path, tiny: Tiny, answer: str = "t9 t10 t11 t12", count: int = 24) -> Path:
    lines = [
        {
            "messages": [
                {"role": "user", "content": p["prompt"]},
                {"role": "assistant", "content": answer},
            ]
        }
        for p in tiny.prompts(count)
    ]
    return write_prompts(tmp_path / "given.jsonl", lines)


def preview(run: Run, *stages: str, count: int = 2) -> Preview:
    return look(run.config, {name: run.out(name) for name in stages}, count)


def test_pieces_are_the_text_and_say_what_each_token_is() -> None:
    tokens = tokenizer("chatml", "exact")
    text = "<|im_start|>user\nQ é😀<|im_end|>\n<|im_start|>assistant\nan answer 😀<|im_end|>"
    ids = tokens(text, add_special_tokens=False).input_ids
    start = ids.index(tokens.convert_tokens_to_ids("<|im_end|>")) + 1
    end = len(ids)
    found = pieces(tokens, ids, [(start, end)], end - 1, set(ids) - {ids[start + 1]})
    assert "".join(p.text for p in found) == text
    assert [i for p in found for i in p.ids] == ids
    kinds = [p.kind for p in found]
    first = kinds.index("first")
    assert set(kinds[:first]) == {"prompt"}
    assert (kinds[first + 1], kinds[-1]) == ("outside", "cut")
    assert set(kinds[first + 2 : -1]) <= {"answer", "outside"}
    assert [p.text for p in found].count("😀") == 2


@pytest.mark.parametrize("kind", ["bytes", "exact", "pieces"])
def test_no_space_is_lost_between_tokens(kind: str) -> None:
    tokens = tokenizer("plain", kind)
    ids = tokens("the answer is  two\n\n- one → é", add_special_tokens=False).input_ids
    found = pieces(tokens, ids, [], len(ids), set())
    assert "".join(p.text for p in found) == tokens.decode(ids)


def test_answers_of_the_set_before_anything_is_written(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny
) -> None:
    run = make_run(source=answered(tmp_path, tiny), regenerate=GIVEN, train={"max_length": 16})
    run.run("resolve", "prepare")
    found = preview(run, "resolve", "prepare")
    assert found.source == "the prompt set's own"
    # <s> <user> and four words, four words of an answer and its end: rows 5..8 teach the first step
    assert (found.samples, found.tokens, found.answer_tokens) == (20, 20 * 11, 20 * 5)
    assert found.supervised == 20 * 4
    assert (found.truncated, found.unsupervised, found.warnings) == (0, 0, [])
    assert found.coverage == 1.0
    assert found.coverage_of == "the training answers' own tokens"
    kinds = [p.kind for p in found.shown[0].pieces]
    assert kinds == ["prompt"] * 6 + ["first"] + ["answer"] * 4


def test_the_targets_answers_and_the_mass_that_the_vocabulary_holds(
    make_run: MakeRun, tiny: Tiny
) -> None:
    train = {"draft_vocab_size": 30, "max_length": 16}
    run = make_run(train=train)
    run.run("resolve", "prepare", "regenerate", "extract")
    found = preview(run, "resolve", "prepare", "regenerate", "extract")
    assert found.source == "written by the target"
    assert (found.truncated, found.truncated_share, found.tokens_cut) == (20, 1.0, 40)
    assert found.coverage_of == "the target's probability mass on held-out answers"
    warnings = " ".join(found.warnings)
    assert "100% of the samples are cut at 16 tokens" in warnings
    assert "100% of the samples end without an end of turn" in warnings
    assert "can never be proposed; raise train.draft_vocab_size" in warnings
    assert [p.kind for p in found.shown[0].pieces][16:] == ["cut"] * 2


def test_mass_inside_is_the_targets_own(make_run: MakeRun, tiny: Tiny) -> None:
    run = make_run()
    run.run("resolve", "prepare", "regenerate", "extract")
    target = Target.load(tiny.path)
    kept = torch_ids(range(0, 64, 2))
    expected, rows = 0.0, 0
    for line in run.lines("regenerate", "responses.jsonl"):
        if line["split"] == "heldout":
            [(start, end)] = line["spans"]
            hidden, _ = target.forward(torch_ids(line["ids"])[None], target.new_cache(32))
            mass = target.logits(hidden)[0, start - 1 : end].softmax(-1)[:, kept].sum(-1)
            expected, rows = expected + float(mass.sum()), rows + len(mass)
    found = mass_share(run.out("extract"), tiny.path, kept)
    assert found == pytest.approx(expected / rows, abs=5e-3)  # hidden states are kept in bfloat16


def torch_ids(ids: Iterable[int]) -> Tensor:
    import torch

    return torch.tensor(list(ids))


@pytest.mark.parametrize("share", [1.0, 0.3])
def test_the_draft_vocabulary_is_the_one_that_training_chooses(
    make_run: MakeRun, share: float
) -> None:
    """Whole answers count, also what lies beyond the longest sample."""
    train = {"draft_vocab_size": 20, "max_length": 16, "epochs": 1.0, "data_share": share}
    run = make_run(
        regenerate={"max_new_tokens": 24},
        train={**train, "batch_tokens": 64, "eval_samples": 2, "head": "target"},
    )
    run.run(*DATA_STAGES)
    run_train(run.path, "once")
    kept = set(vocab.kept_ids(weights(run.path)["d2t"]).tolist())
    found = preview(run, "resolve", "prepare", "regenerate", count=99)
    by_kind = {
        kind: {i for s in found.shown for p in s.pieces if p.kind == kind for i in p.ids}
        for kind in ("answer", "outside")
    }
    assert by_kind["answer"] <= kept
    assert by_kind["outside"]
    assert not by_kind["outside"] & kept


def test_the_draft_vocabulary_of_a_draft_to_start_from(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny
) -> None:
    draft = tmp_path / "draft"
    run = make_run(source=answered(tmp_path, tiny), regenerate=GIVEN)
    run.run("resolve", "prepare")
    train = run.config.recipe.train.model_copy(update={"start_from": str(draft)})
    recipe = run.config.recipe.model_copy(update={"train": train})
    run.config = run.config.model_copy(update={"recipe": recipe})
    with pytest.raises(BadInput, match="start_from"):
        preview(run, "resolve", "prepare")
    draft.mkdir()
    d2t, _ = vocab.maps(torch_ids([1, 9, 12]), 64)
    save_file({"d2t": d2t}, draft / "model.safetensors")
    found = preview(run, "resolve", "prepare")
    assert found.draft_vocab_size == 3
    assert found.coverage == pytest.approx(3 / 5)  # t9 t12 and the end of t9 t10 t11 t12 </s>


def test_the_share_of_answer_tokens_stops_where_samples_are_cut() -> None:
    response = Response(id="a", split="train", ids=[9, 1, 2, 3], spans=[(1, 4)], finish="eos")
    assert answer_share([response], torch_ids([1]), 3) == 0.5


def test_nothing_to_show_is_said(make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    assert code(["preview", str(run.path)]) == 2
    said = capsys.readouterr().err
    assert "the conversation has no answer" in said
    assert "eagle3 regenerate" in said


def code(argv: list[str]) -> int | str | None:
    with pytest.raises(SystemExit) as e:
        main(argv)
    return e.value.code


def test_the_command_runs_what_is_missing_and_writes_a_page(
    make_run: MakeRun,
    tmp_path: Path,
    tiny: Tiny,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    run = make_run(source=answered(tmp_path, tiny), regenerate=GIVEN)
    html = tmp_path / "deep" / "p.html"
    assert code(["preview", str(run.path), "--html", str(html), "--samples", "1"]) == 0
    out = capsys.readouterr().out
    assert "supervised" in out
    assert "\x1b" not in out
    assert "‹ t9›« t10" in out
    text = html.read_text()
    assert "http" not in text
    HTMLParser().feed(text)
    assert current(run.path, "prepare").is_dir()
    assert code(["preview", str(run.path), "--html", str(tmp_path)]) == 2
    assert f"--html {tmp_path} cannot be written" in capsys.readouterr().err
    assert code(["preview", str(run.path), "--samples", "-1"]) == 2
    assert "expected a number of samples" in capsys.readouterr().err


def test_a_prompt_set_without_a_run(
    tmp_path: Path, tiny: Tiny, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    source = answered(tmp_path, tiny)
    target = f"file://{tiny.path}"
    recipe = tmp_path / "r.yaml"
    recipe.write_text("name: small\nprompts: {heldout: 4}\nregenerate: {max_new_tokens: 12}\n")
    argv = ["preview", "--target", target, "--prompts", str(source), "--recipe", str(recipe)]
    assert code(argv) == 0
    assert "\x1b[32m" in capsys.readouterr().out
    assert code(["preview", "--target", target]) == 2
    assert "expected RUN" in capsys.readouterr().err


def test_neither_terminal_nor_page_is_steered_by_a_sample(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny
) -> None:
    run = make_run(source=answered(tmp_path, tiny), regenerate=GIVEN)
    run.run("resolve", "prepare")
    found = preview(run, "resolve", "prepare", count=1)
    piece = found.shown[0].pieces[0]
    found.shown[0].pieces[0] = type(piece)("a\x1b[2Jb\x07<script>", "answer", piece.ids)
    assert "\\x1b[2Jb\\x07" in terminal(found, colour=False)
    assert "<script" not in page(found)
