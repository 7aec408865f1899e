from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3.data import given as module
from eagle3.data.given import Tally, responses
from eagle3.data.records import Prompt, Response
from eagle3.data.spans import Reader
from eagle3.errors import BadInput
from tests.eagle3.data.chats import tokenizer
from tests.eagle3.data.conftest import MakeRun
from tests.tiny import EOS, Tiny


def prompt(*texts: str, system: str | None = None) -> Prompt:
    messages = [{"role": "system", "content": system}] if system else []
    for i, text in enumerate(texts):
        messages.append({"role": ("user", "assistant")[i % 2], "content": text})
    return Prompt(id="ab", split="train", messages=messages, prompt_tokens=1)


def read(
    shape: str, conversation: Prompt, limit: int = 10_000
) -> tuple[list[Response], Tally, list[list[str]]]:
    tally = Tally()
    tokens = tokenizer(shape, "exact")
    found = responses(Reader(tokens, frozenset()), conversation, frozenset(), limit, tally)
    return found, tally, [[tokens.decode(r.ids[a:b]) for a, b in r.spans] for r in found]


def test_a_conversation_becomes_one_sample() -> None:
    [response], tally, [texts] = read("chatml", prompt("Q", "an answer", "Q", "two"))
    assert texts == ["an answer<|im_end|>", "two<|im_end|>"]
    assert (response.id, response.finish) == ("ab", "eos")
    assert (tally.samples, tally.answers, tally.warnings()) == (1, 2, [])


def test_a_long_conversation_is_split_between_its_turns() -> None:
    long = prompt(*["Q", "an answer"] * 6, system="BE BRIEF.")
    [whole], _, _ = read("chatml", long)
    limit = len(whole.ids) // 2
    found, tally, texts = read("chatml", long, limit)
    assert [t for part in texts for t in part] == ["an answer<|im_end|>"] * 6
    assert [r.id for r in found] == ["ab", *(f"ab-{n}" for n in range(1, len(found)))]
    assert all(len(r.ids) <= limit for r in found)
    decode = tokenizer("chatml", "exact").decode
    assert all(decode(r.ids).startswith("<|im_start|>system\nBE BRIEF.") for r in found)
    assert (tally.split, tally.truncated, tally.samples) == (1, 0, len(found))
    assert "split between their turns" in tally.warnings()[0]


def test_a_single_turn_that_is_too_long_is_cut_and_counted() -> None:
    conversation = prompt("Q", "an answer " * 20)
    [whole], _, _ = read("chatml", conversation)
    [response], tally, _ = read("chatml", conversation, 30)
    assert (response.ids, response.finish) == (whole.ids[:30], "length")
    assert response.spans[0][1] == 30
    assert (tally.truncated, tally.tokens_cut) == (1, len(whole.ids) - 30)


def test_an_answer_beyond_the_limit_is_counted_not_lost() -> None:
    found, tally, _ = read("chatml", prompt("Q" * 60, "an answer"), 30)
    assert (found, tally.left_out, tally.refused) == ([], 1, {module.BEYOND: 1})
    found, tally, _ = read("plain", prompt("Q", "a"))
    assert (found, tally.left_out, tally.refused) == ([], 1, {module.SHORT: 1})
    found, tally, _ = read("plain", prompt("Q"))
    assert (found, tally.left_out, tally.refused) == ([], 1, {module.NONE: 1})


def test_rewritten_history_gives_a_sample_an_answer() -> None:
    found, tally, _ = read("qwen3", prompt("Q", "one", "Q", "two"))
    assert [r.id for r in found] == ["ab", "ab-1"]
    assert (tally.rewritten, tally.split) == (1, 0)
    assert "the chat template rewrites history: 1 conversations" in tally.warnings()[0]


def test_a_conversation_that_came_as_tokens_keeps_them() -> None:
    tokens = prompt("Q", "a").model_copy(update={"ids": [5, 6, 7, 8, 9], "spans": [(2, 5)]})
    tally = Tally()
    reader = Reader(tokenizer("chatml", "exact"), frozenset())
    [response] = responses(reader, tokens, frozenset({9}), 10, tally)
    assert (response.ids, response.spans, response.finish) == ([5, 6, 7, 8, 9], [(2, 5)], "eos")
    [response] = responses(reader, tokens, frozenset({9}), 4, tally)
    assert (response.ids, response.spans, response.finish) == ([5, 6, 7, 8], [(2, 4)], "length")


@pytest.fixture
def conversations(tmp_path: Path, tiny: Tiny) -> Callable[..., Path]:
    def write(*answers: str) -> Path:
        path = tmp_path / "given.jsonl"
        lines = [
            {"messages": [{"role": "user", "content": p["prompt"]}]
             + [{"role": "assistant", "content": a} for a in answers]}
            for p in tiny.prompts(24)
        ]  # fmt: skip
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return write


GIVEN = {"regenerate": {"mode": "given", "max_new_tokens": 12, "batch_size": 8}}


def test_training_takes_the_sets_answers_and_the_held_out_ones_are_the_targets(
    make_run: MakeRun, conversations: Callable[..., Path], tiny: Tiny
) -> None:
    run = make_run(source=conversations("t9 t10 t11"), **GIVEN)
    summary = run.run("resolve", "prepare", "regenerate")
    found = run.lines("regenerate", "responses.jsonl")
    for response in found:
        [[start, end]] = response["spans"]
        answer = response["ids"][start:end]
        own = tiny.chain(response["ids"][start - 1], 12)
        assert answer == ([9, 10, 11, EOS] if response["split"] == "train" else own)
    assert (summary["train_samples"], summary["heldout_samples"]) == (20, 4)
    assert summary["mode"] == "given"
    assert summary["given"]["answers"] == 20
    assert summary["given"]["refused"] == {}


def test_a_set_without_answers_is_refused(
    make_run: MakeRun, conversations: Callable[..., Path]
) -> None:
    run = make_run(source=conversations(), **GIVEN)
    run.run("resolve", "prepare")
    with pytest.raises(BadInput, match=f"20 conversations.*{module.NONE}") as e:
        run.run("regenerate")
    assert "regenerate.mode: target" in e.value.hint


def test_a_long_conversation_is_trained_on_but_not_held_out(
    make_run: MakeRun, conversations: Callable[..., Path], tiny: Tiny
) -> None:
    path = conversations("t9 t10")
    user = {"role": "user", "content": " ".join(["t9"] * 40)}
    long = {"messages": [user, {"role": "assistant", "content": "t12 t13"}]}
    path.write_text(path.read_text() + json.dumps(long) + "\n")
    run = make_run(source=path, prompts={"max_prompt_tokens": 30}, **GIVEN)
    summary = run.run("resolve", "prepare")
    assert (summary["too_long"], summary["train"], summary["heldout"]) == (0, 21, 4)
    [found] = [p for p in run.lines("prepare", "prompts.jsonl") if p["prompt_tokens"] > 30]
    assert found["split"] == "train"
