from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from eagle3 import target
from eagle3.data.batch import Sequence, decode_batch, shared_prefix
from eagle3.target import Target
from tests.tiny import EOS, Tiny, build_permutation_target, build_random_target

NO_END: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def random_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random_target(tmp_path_factory.mktemp("random"))


@pytest.fixture(scope="module")
def random_target(random_path: Path) -> Target:
    return Target.load(random_path)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 64, (n,), generator=generator).tolist() for n in (3, 9, 1, 17, 6)]


def decode(target: Target, sequences: list[Sequence]) -> list[list[int]]:
    decode_batch(target, sequences, NO_END)
    return [s.answer for s in sequences]


def greedy(count: int) -> list[Sequence]:
    return [Sequence(p, count) for p in prompts()]


def test_batch_equals_generate_one_by_one(random_path: Path, random_target: Target) -> None:
    stock = AutoModelForCausalLM.from_pretrained(random_path)
    stock.generation_config.eos_token_id = None
    expected = [
        stock.generate(torch.tensor([p]), max_new_tokens=12, do_sample=False, pad_token_id=0)[
            0, len(p) :
        ].tolist()
        for p in prompts()
    ]
    assert decode(random_target, greedy(12)) == expected


def test_prompts_read_in_stretches_give_the_same(
    random_target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = decode(random_target, greedy(6))
    monkeypatch.setattr(target, "SCORES_BYTES", 4 * 5 * 4 * 17 * 3)
    assert decode(random_target, greedy(6)) == whole


def test_tokens_that_all_prompts_begin_with_are_read_once(random_target: Target) -> None:
    head = [9, 33, 12, 50]
    asked = [head + p for p in prompts()] + [[*head, 7]]
    assert shared_prefix(asked) == 4
    assert shared_prefix([[1, 2], [1, 2, 3]]) == 1
    assert shared_prefix([[5]]) == 0
    one_by_one = [decode(random_target, [Sequence(p, 8)])[0] for p in asked]
    assert decode(random_target, [Sequence(p, 8) for p in asked]) == one_by_one


def test_finished_sequences_leave_and_the_others_go_on(tmp_path: Path) -> None:
    tiny = build_permutation_target(tmp_path, ends=True)
    target = Target.load(tmp_path)
    starts = [tiny.order[-2], tiny.order[0], tiny.order[-5], tiny.order[-9]]
    sequences = [Sequence([3, start], 30) for start in starts]
    counted: list[int] = []
    decode_batch(target, sequences, frozenset({EOS}), counted.append)
    assert [s.answer for s in sequences] == [tiny.chain(start, 30) for start in starts]
    assert [s.finish for s in sequences] == ["eos", "length", "eos", "eos"]
    assert sum(counted) == sum(len(s.answer) for s in sequences)


def test_each_sequence_has_its_own_cap(tiny: Tiny) -> None:
    target = Target.load(tiny.path)
    sequences = [Sequence([3, tiny.order[i]], n) for i, n in enumerate((1, 7, 4))]
    decode_batch(target, sequences, NO_END)
    assert [len(s.answer) for s in sequences] == [1, 7, 4]


def test_sampling_depends_on_the_seed_and_not_on_the_batch(random_target: Target) -> None:
    def sampled(which: list[int], seed: int) -> list[list[int]]:
        return decode(
            random_target, [Sequence(prompts()[i], 10, 1.0, seed=seed + i) for i in which]
        )

    together = sampled([0, 1, 2, 3, 4], 0)
    assert [together[1], together[3]] == sampled([1, 3], 0)
    assert together != sampled([0, 1, 2, 3, 4], 100)


def test_sampling_follows_the_distribution(tmp_path: Path) -> None:
    """At certainty c and temperature T the successor's logit is c / T, that of others 0."""
    tiny = build_permutation_target(tmp_path, certainty=8.0)
    target = Target.load(tmp_path)
    start = tiny.order[0]
    sequences = [Sequence([3, start], 1, 2.0, seed=i) for i in range(600)]
    decode_batch(target, sequences, NO_END)
    share = sum(s.answer == [tiny.perm[start]] for s in sequences) / len(sequences)
    weights = torch.zeros(64, dtype=torch.float64)
    weights[tiny.perm[start]] = 8.0 / 2.0
    expected = weights.softmax(-1).max().item()
    assert abs(share - expected) < 4 * (expected * (1 - expected) / 600) ** 0.5
