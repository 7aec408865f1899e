"""Counting tells another distribution from chance, and says how large a bias it would have seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from eagle3.bench.prompts import HeldOut
from eagle3.decode import verify
from eagle3.decode.engine import Engine
from eagle3.proof import samples, twosample
from eagle3.proof.reference import Reference
from eagle3.target import Target
from tests.eagle3.proof.test_exact import no_residual, plain_ratio
from tests.eagle3.proof.told import Drawn
from tests.golden import CAPTURE, random_target

VOCAB, TEXTS = 6, 300
PROMPTS = [HeldOut("p0", [0, 1]), HeldOut("p1", [3])]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    random_target(VOCAB, seed=3).model.save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "SAMPLED_TOKENS", 3)
    monkeypatch.setattr(twosample, "POWER_DRAWS", 300)


def drawn(path: Path) -> dict[str, object]:
    target = Target.load(path, capture_layers=CAPTURE)
    q_V = torch.arange(1, VOCAB + 1).double()
    engine = Engine(target, Drawn(q_V=q_V / q_V.sum()), slots=16)
    reference = Reference(path, frozenset())
    found = [samples.draw(engine, reference, prompt, TEXTS, 0) for prompt in PROMPTS]
    return samples.section(found, 0)


def test_the_engine_draws_as_the_target_does(saved: Path) -> None:
    found = drawn(saved)
    assert found["verdict"] == "lossless"
    assert found["texts_of_each_side"] == 2 * TEXTS
    assert isinstance(found["caught_95"], float)
    assert 0 < found["caught_95"] < 0.3


@pytest.mark.parametrize("fault", [plain_ratio, no_residual])
def test_a_fault_of_acceptance_is_seen(
    saved: Path, fault: Callable[..., int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_try_drawn", fault)
    assert drawn(saved)["verdict"] == "not_lossless"


def texts(p: list[float], count: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    values: list[int] = rng.choice(len(p), count, p=p).tolist()
    return values


def test_false_alarms_are_as_rare_as_they_should_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """p-values of equal sides: one in ten below 0.1 (400 pairs; three standard errors, 0.045)."""
    monkeypatch.setattr(twosample, "DRAWS", 400)
    rng = np.random.default_rng(0)
    p = [0.4, 0.3, 0.1, 0.1, 0.05, 0.05]
    found = [
        twosample.p_value([twosample.count(texts(p, 80, 2 * i), texts(p, 80, 2 * i + 1))], rng)
        for i in range(400)
    ]
    assert 0.05 < np.mean(np.array(found) < 0.1) < 0.145


def test_a_bias_as_large_as_said_is_caught_as_often_as_said() -> None:
    p = np.array([0.45, 0.25, 0.2, 0.1])
    table = np.array([p * 400, p * 400]).astype(np.int64)
    rng = np.random.default_rng(0)
    caught = dict(twosample.power([table] * 2, 0.001, rng))
    said = min(v for v, chance in caught.items() if chance >= 0.8)
    biased = twosample._biased(p, said)
    assert np.abs(biased[:4] - p).sum() / 2 == pytest.approx(said)
    hits = 0
    for i in range(100):
        sides = [
            (texts(biased.tolist(), 400, 4 * i + j), texts(p.tolist(), 400, 4 * i + j + 2))
            for j in range(2)
        ]
        hits += twosample.p_value([twosample.count(a, b) for a, b in sides], rng) <= 0.001
    assert 65 <= hits <= 98


def test_holm() -> None:
    assert twosample.holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx(
        {"b": 0.03, "c": 0.06, "a": 0.06}
    )


def test_rare_values_are_counted_as_one() -> None:
    table = twosample.count([1] * 6 + [2, 3], [1] * 4 + [4, 5, 6, 7])
    assert table.tolist() == [[6, 2], [4, 4]]
    assert twosample.count([1] * 8, [1] * 8).tolist() == [[8], [8]]


def test_a_bias_moves_as_much_as_it_says() -> None:
    for p in ([0.3, 0.4, 0.3], [0.9, 0.1], [1.0]):
        biased = twosample._biased(np.array(p), 0.2)
        assert biased.sum() == pytest.approx(1)
        assert np.abs(biased - np.append(p, 0.0)).sum() / 2 == pytest.approx(0.2)


def test_the_shortest_prompts_are_continued() -> None:
    prompts = [HeldOut(str(i), [0] * length) for i, length in enumerate([5, 2, 9, 2, 7, 4])]
    assert [p.id for p in samples.shortest(prompts)] == ["1", "3", "5", "0"]


def test_a_text_that_ended_and_where_it_departs() -> None:
    found = samples.Samples(
        id="p", prompt_sha256="0", with_draft=[[1, 2], [1]], reference=[[4, 2], []], greedy=[1, 2]
    )
    assert [samples._departs(found, t) for t in [[1, 2], [1], [4, 2], []]] == [2, 1, 0, 0]
    assert samples._token_at(1)(found, [1]) == samples.ENDED
