from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from eagle3.config import RunConfig, load_recipe
from eagle3.data.prompts import RawPrompt, read_prompts
from eagle3.data.tokenised import (
    Tokens,
    as_messages,
    check_round_trip,
    check_tokens,
    read_tokens,
)
from eagle3.errors import BadInput
from eagle3.target import load_tokenizer
from tests.eagle3.data.conftest import MakeRun
from tests.tiny import EOS, Tiny, write_prompts

IDS = [0, 3, 10, 11, 12, 13, EOS]


@pytest.mark.parametrize(
    "answers",
    [
        {"loss_mask": [0, 0, 0, 0, 1, 1, 1]},
        {"loss_mask": [False] * 4 + [True] * 3},
        {"spans": [[4, 7]]},
        {"labels": [-100, -100, -100, -100, 12, 13, EOS]},
    ],
)
def test_three_ways_to_say_which_tokens_are_answers(answers: dict[str, object]) -> None:
    assert read_tokens("here", {"input_ids": IDS, **answers}) == Tokens(IDS, [(4, 7)])


def test_several_turns() -> None:
    row = {"input_ids": IDS, "loss_mask": [0, 1, 0, 0, 1, 1, 0]}
    assert read_tokens("here", row).spans == [(1, 2), (4, 6)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"input_ids": IDS}, "need a loss_mask, spans or labels"),
        ({"input_ids": [], "spans": [[1, 2]]}, "list of integers that is not empty"),
        ({"input_ids": "12", "spans": [[1, 2]]}, "input_ids must be a list of integers"),
        ({"input_ids": [1.5, 2], "spans": [[1, 2]]}, "something other than integers"),
        ({"input_ids": [1, -1], "spans": [[1, 2]]}, "a token id is not negative"),
        ({"input_ids": IDS, "loss_mask": [1, 0]}, "loss_mask has 2 entries, input_ids 7"),
        ({"input_ids": IDS, "loss_mask": [0] * 7}, "the answers [] do not fit 7 tokens"),
        ({"input_ids": IDS, "spans": [[0, 3]]}, "the first after a prompt"),
        ({"input_ids": IDS, "spans": [[4, 9]]}, "do not fit 7 tokens"),
        ({"input_ids": IDS, "spans": [[4, 6], [5, 7]]}, "ranges in order"),
        ({"input_ids": IDS, "spans": [[4, 4]]}, "do not fit"),
        ({"input_ids": IDS, "spans": [4, 7]}, "list of [start, end) pairs"),
        ({"input_ids": IDS, "spans": [["a", "b"]]}, "pairs of integers"),
        ({"input_ids": IDS, "labels": [-100] * 6 + [9]}, "labels differ from input_ids"),
    ],
)
def test_bad_rows_are_refused_by_name(row: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=r"^here: ") as e:
        read_tokens("here", row)
    assert message in str(e.value)


FACTS = {
    "resolved": "org/name@abc",
    "ref": "org/name",
    "tokenizer_sha256": "f" * 64,
    "vocab_size": 64,
}


def demo_prompts() -> list[RawPrompt]:
    return read_prompts(RunConfig(target="demo", recipe=load_recipe("quick")))


@pytest.mark.parametrize("name", [None, "org/name", "org/name@abc", "f" * 64])
def test_ids_of_the_targets_tokenizer_pass(name: str | None) -> None:
    check_tokens("row 3", Tokens(IDS, [(4, 7)], name), FACTS)


@pytest.mark.parametrize(
    ("ids", "name", "message"),
    [
        (IDS, "other/model", "row 3: the ids are those of the tokenizer other/model"),
        ([*IDS, 151_643], None, "row 3: token id 151,643 is outside the target's vocabulary of 64"),
    ],
)
def test_labels_of_another_tokenizer_are_refused(
    ids: list[int], name: str | None, message: str
) -> None:
    with pytest.raises(BadInput) as e:
        check_tokens("row 3", Tokens(ids, [(4, 7)], name), FACTS)
    assert message in str(e.value)
    assert "tokenise it with the tokenizer of org/name@abc" in e.value.hint


def byte_level(texts: list[str], size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE, trained on some texts as a model's is on the web."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, show_progress=False, initial_alphabet=sorted(alphabet)
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe)


def test_ids_that_fit_the_vocabulary_but_mean_something_else_are_refused() -> None:
    texts = [p.messages[0]["content"] for p in demo_prompts()]
    ours, theirs = byte_level(texts[:600], 3000), byte_level(texts[600:], 2000)
    own = [(f"row {i}", Tokens(ours(t).input_ids, [])) for i, t in enumerate(texts[:80])]
    check_round_trip(own, ours, FACTS)
    other = [(f"row {i}", Tokens(theirs(t).input_ids, [])) for i, t in enumerate(texts[:80])]
    with pytest.raises(BadInput, match=r"only \d\d% of the ids come back \(of row \d+, ") as e:
        check_round_trip(other, ours, FACTS)
    assert "the tokenizer of org/name@abc" in e.value.hint
    check_round_trip(other[:5], ours, FACTS)  # too few to tell


def test_text_of_the_turns(tiny: Tiny) -> None:
    found = as_messages(Tokens(IDS, [(4, 7)]), load_tokenizer(tiny.path))
    assert [(m["role"], m["content"]) for m in found] == [
        ("user", "t10 t11"),
        ("assistant", "t12 t13"),
    ]


def test_a_run_keeps_training_answers_and_asks_heldout_ones_anew(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny
) -> None:
    rows = []
    for i in range(12):
        prompt = [0, 3, tiny.order[i], tiny.order[2 * i]]
        rows.append(
            {
                "input_ids": [*prompt, 9, 10, EOS],
                "loss_mask": [0] * 4 + [1] * 3,
                "split": "heldout" if i < 3 else "train",
            }
        )
    run = make_run(source=write_prompts(tmp_path / "t.jsonl", rows))
    summary = run.run("resolve", "prepare", "regenerate")
    assert (summary["train_samples"], summary["heldout_samples"]) == (9, 3)
    answers = run.lines("regenerate", "responses.jsonl")
    kept = [r for r in answers if r["split"] == "train"]
    assert {tuple(r["ids"]) for r in kept} == {tuple(row["input_ids"]) for row in rows[3:]}
    assert all((r["spans"], r["finish"]) == ([[4, 7]], "eos") for r in kept)
    asked = [r for r in answers if r["split"] == "heldout"]
    assert all(r["ids"][4:] == tiny.chain(r["ids"][3], 12) for r in asked)
