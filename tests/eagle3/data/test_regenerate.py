from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from eagle3.data.chat import next_turn, prompt_ids
from eagle3.data.engines.conversation import Ledger
from eagle3.data.records import Journal, Message, Response, read_records
from eagle3.errors import Stopped
from eagle3.target import load_tokenizer
from tests.eagle3.data.conftest import MakeRun
from tests.tiny import EOS, Tiny, build_permutation_target, write_prompts


def test_answers_are_the_targets_own(make_run: MakeRun, tiny: Tiny) -> None:
    run = make_run()
    summary = run.run("resolve", "prepare", "regenerate")
    responses = run.lines("regenerate", "responses.jsonl")
    assert len(responses) == 24
    for response in responses:
        [[start, end]] = response["spans"]
        assert response["ids"][start:end] == tiny.chain(response["ids"][start - 1], 12)
        assert (start, end, response["finish"]) == (6, 18, "length")
    assert summary["response_tokens"] == 24 * 12
    assert summary["train_samples"] == 20
    prompts = run.lines("prepare", "prompts.jsonl")
    assert [r["id"] for r in responses] == [p["id"] for p in prompts]


def test_end_of_turn_belongs_to_the_answer(make_run: MakeRun, tmp_path: Path) -> None:
    tiny = build_permutation_target(tmp_path / "ends", ends=True)
    source = write_prompts(tmp_path / "p.jsonl", tiny.prompts(59))
    run = make_run(target=tiny.path, source=source)
    run.run("resolve", "prepare", "regenerate")
    for response in run.lines("regenerate", "responses.jsonl"):
        [[start, end]] = response["spans"]
        answer = response["ids"][start:end]
        assert answer == tiny.chain(response["ids"][start - 1], 12)
        assert (answer[-1] == EOS) == (response["finish"] == "eos")


def test_token_budget_ends_the_training_part_only(make_run: MakeRun) -> None:
    summary = make_run(regenerate={"max_new_tokens": 12, "batch_size": 8, "token_budget": 100}).run(
        "resolve", "prepare", "regenerate"
    )
    assert summary["heldout_samples"] == 4
    assert summary["train_response_tokens"] == 108  # nine answers of twelve: the first above 100


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """TERM arrives at a decoding step, in the middle of a batch."""
    counted, count = [0], Ledger.count

    def counting(self: Ledger, new_tokens: int) -> None:
        counted[0] += 1
        if counted[0] == steps:
            self.ctx.stop.set()
        count(self, new_tokens)

    monkeypatch.setattr(Ledger, "count", counting)


def test_a_stopped_run_goes_on_where_it_was(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_run()
    whole.run("resolve", "prepare", "regenerate")
    expected = (whole.out("regenerate") / "responses.jsonl").read_bytes()
    digest = whole.out("regenerate")
    for path in digest.iterdir():
        path.unlink()
    stop_after(monkeypatch, 30)
    with pytest.raises(Stopped, match="kept"):
        whole.run("regenerate")
    work = digest / "work" / "responses.jsonl"
    kept = work.read_text().splitlines()
    assert 4 <= len(kept) < 24
    work.write_text("\n".join(kept) + '\n{"id": "half a li')
    whole.run("regenerate")
    assert (digest / "responses.jsonl").read_bytes() == expected
    assert not work.exists()


def test_journal_repairs_a_line_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "work" / "r.jsonl"
    record = Response(id="a", split="train", ids=[1, 2], spans=[(1, 2)], finish="eos")
    journal = Journal(path, Response)
    journal.append(record)
    journal.close()
    path.write_bytes(path.read_bytes() + b'{"id": "b", "spl')
    journal = Journal(path, Response)
    assert journal.records == [record]
    journal.append(record)
    journal.close()
    assert read_records(path, Response) == [record, record]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\0" * 9 + b"\n" + lines[1])  # a machine that lost power
    journal = Journal(path, Response)
    assert journal.records == [record]
    journal.close()
    assert path.read_bytes() == lines[0]


def test_sampled_answers_follow_the_seed_and_heldout_stays_greedy(
    make_run: MakeRun, tmp_path: Path
) -> None:
    tiny = build_permutation_target(tmp_path / "warm", certainty=4.0)
    source = write_prompts(tmp_path / "p.jsonl", tiny.prompts(24))

    def answers(batch_size: int, seed: int) -> list[tuple[str, list[int]]]:
        run = make_run(
            target=tiny.path,
            source=source,
            seed=seed,
            regenerate={"max_new_tokens": 12, "temperature": 1.0, "batch_size": batch_size},
        )
        run.run("resolve", "prepare", "regenerate")
        found = run.lines("regenerate", "responses.jsonl")
        for response in found:
            [[start, end]] = response["spans"]
            greedy = response["ids"][start:end] == tiny.chain(response["ids"][start - 1], 12)
            assert greedy or response["split"] == "train"
        return [(r["id"], r["ids"]) for r in found if r["split"] == "train"]

    first = answers(8, 0)
    assert answers(5, 0) == first
    assert answers(8, 1) != first


def test_further_answers_are_sampled_and_the_first_stays_greedy(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny
) -> None:
    unsure = build_permutation_target(tmp_path / "unsure", certainty=2.0)
    settings = {"max_new_tokens": 12, "batch_size": 8, "answers": 3}
    run = make_run(target=unsure.path, regenerate=settings)
    summary = run.run("resolve", "prepare", "regenerate")
    assert (summary["train_samples"], summary["heldout_samples"]) == (60, 4)
    answers = {r["id"]: r["ids"] for r in run.lines("regenerate", "responses.jsonl")}
    for prompt in run.lines("prepare", "prompts.jsonl"):
        first = answers[prompt["id"]]
        assert first[6:] == unsure.chain(first[5], 12)
        if prompt["split"] == "train":
            second, third = (answers[f"{prompt['id']}-{n}"] for n in (1, 2))
            assert first[:6] == second[:6] == third[:6]
            assert len({tuple(first), tuple(second), tuple(third)}) == 3


def test_later_turns_keep_the_ids_of_earlier_answers(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny
) -> None:
    users = [[tiny.order[i], tiny.order[i + 7], tiny.order[i + 20]] for i in range(12)]
    lines = [{"messages": [{"role": "user", "content": f"t{u}"} for u in three]} for three in users]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = make_run(source=path)
    run.run("resolve", "prepare", "regenerate")
    for response in run.lines("regenerate", "responses.jsonl"):
        assert len(response["spans"]) == 3
        for start, end in response["spans"]:
            assert response["ids"][start:end] == tiny.chain(response["ids"][start - 1], 12)
        # Cut by length, the answers lack their end of turn: the template adds it, unsupervised.
        assert response["ids"][response["spans"][0][1]] == EOS


def test_a_conversation_ends_when_the_next_turn_does_not_fit(
    make_run: MakeRun, tmp_path: Path
) -> None:
    tiny = build_permutation_target(tmp_path / "narrow", context=100)
    many = [{"role": "user", "content": f"t{tiny.order[3]}"}] * 8
    lines = [{"messages": [{"role": "user", "content": f"t{t}"}, *many]} for t in tiny.order[:12]]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = make_run(target=tiny.path, source=path)
    run.run("resolve", "prepare", "regenerate")
    for response in run.lines("regenerate", "responses.jsonl"):
        assert len(response["ids"]) <= 100
        assert len(response["spans"]) == 7
    assert "did not fit the context" in run.logged("regenerate", "log")[-1]["message"]


class TestNextTurn:
    USER = ({"role": "user", "content": "t9"},)

    def follow(
        self, tiny: Tiny, answer: list[int], template: str | None = None
    ) -> tuple[list[int], tuple[list[int], list[Message], bool]]:
        tokenizer = load_tokenizer(tiny.path)
        if template is not None:
            tokenizer.chat_template = template
        history = [{"role": "user", "content": "t5"}]
        ids = prompt_ids(tokenizer, history) + answer
        end = frozenset({EOS})
        return ids, next_turn(tokenizer, history, ids, answer, list(self.USER), end)

    def test_generated_end_of_turn_is_not_doubled(self, tiny: Tiny) -> None:
        ids, (longer, messages, kept) = self.follow(tiny, [7, 8, EOS])
        assert kept
        assert longer == [*ids, 3, 9]
        assert [m["role"] for m in messages] == ["user", "assistant", "user"]

    def test_missing_end_of_turn_is_added(self, tiny: Tiny) -> None:
        ids, (longer, _, kept) = self.follow(tiny, [7, 8])
        assert kept
        assert longer == [*ids, EOS, 3, 9]

    def test_a_template_that_rewrites_history_is_tokenised_afresh(self, tiny: Tiny) -> None:
        template = (
            "<s> {% for m in messages %}{{ 't6 ' if m['role'] == 'assistant' else "
            "'<user> ' + m['content'] + ' ' }}{% endfor %}"
        )
        _, (longer, _, kept) = self.follow(tiny, [7, 8, EOS], template)
        assert not kept
        assert longer == [0, 3, 5, 6, 3, 9]


def test_answers_before_a_template_rewrites_history_are_samples_of_their_own(
    make_run: MakeRun, tmp_path: Path, tiny: Tiny
) -> None:
    """As templates do that remove reasoning: an earlier answer is shown without its first word."""
    target = tmp_path / "rewriting"
    shutil.copytree(tiny.path, target)
    template = (
        "<s> {% for m in messages %}{% if m['role'] == 'assistant' %}"
        "{{ m['content'].split(' ', 1)[-1] + ' </s> ' }}"
        "{% else %}{{ '<user> ' + m['content'] + ' ' }}{% endif %}{% endfor %}"
    )
    (target / "chat_template.jinja").write_text(template)
    users = [[tiny.order[i], tiny.order[i + 7], tiny.order[i + 20]] for i in range(12)]
    lines = [{"messages": [{"role": "user", "content": f"t{u}"} for u in three]} for three in users]
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = make_run(target=target, source=path)
    summary = run.run("resolve", "prepare", "regenerate")
    found = run.lines("regenerate", "responses.jsonl")
    prompts = run.lines("prepare", "prompts.jsonl")
    train = [p["id"] for p in prompts if p["split"] == "train"]
    assert [r["id"] for r in found if r["split"] == "train"] == [
        name for p in train for name in (f"{p}.0", f"{p}.1", p)
    ]
    assert [r["id"] for r in found if r["split"] == "heldout"] == [
        p["id"] for p in prompts if p["split"] == "heldout"
    ]
    for response in found:
        [[start, end]] = response["spans"]
        assert end == len(response["ids"])
        assert response["ids"][start:end] == tiny.chain(response["ids"][start - 1], 12)
    assert summary["train_response_tokens"] == len(train) * 3 * 12
