"""Token for token in float32 and in half precision, and the faults that this catches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from eagle3.bench.prompts import HeldOut
from eagle3.decode import forward
from eagle3.decode.cache import KVRows
from eagle3.decode.engine import Engine
from eagle3.proof.greedy import PromptProof, prove_prompt, verdict
from eagle3.proof.reference import Reference
from eagle3.proof.tolerance import allowed_margin, ulp
from eagle3.target import Target
from tests.eagle3.proof.told import Told
from tests.families import DECODED, Family, build
from tests.golden import CAPTURE, random_target

VOCAB, TOKENS = 48, 24
PROMPTS = [HeldOut(f"p{i}", [i, 2 * i + 1, 7]) for i in range(3)]
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    random_target(VOCAB).model.save_pretrained(path)
    return path


def proofs(path: Path, dtype: torch.dtype) -> list[PromptProof]:
    """With a method that is told what the reference says."""
    reference = Reference(path, frozenset(), dtype=dtype)
    right = [[*p.ids, *reference.greedy(p.ids, TOKENS)] for p in PROMPTS]
    target = Target.load(path, dtype, capture_layers=CAPTURE)
    engine = Engine(target, Told(right=right, vocab=VOCAB))
    return [prove_prompt(engine, reference, prompt, TOKENS) for prompt in PROMPTS]


@BOTH
def test_the_engine_says_what_the_target_says(saved: Path, dtype: torch.dtype) -> None:
    found = proofs(saved, dtype)
    assert verdict(found, dtype) == "lossless"
    assert sum(p.rounds for p in found) < len(PROMPTS) * TOKENS / 2  # guesses were accepted
    for tie in [tie for p in found for tie in p.near_ties]:
        assert tie.is_tie


def places_off_by_one(*args: object) -> tuple[Tensor | None, Tensor | None]:
    positions, mask = _PLACES(*args)  # type: ignore[arg-type]
    return None if positions is None else positions + 1, mask


def rows_not_moved(self: KVRows, line: Tensor, source: Tensor, place: Tensor) -> None:
    """Accepted rows stay where they were; what is read there is of refused guesses."""


def sees_siblings(*args: object) -> tuple[Tensor | None, Tensor | None]:
    positions, mask = _PLACES(*args)  # type: ignore[arg-type]
    return positions, None if mask is None else torch.ones_like(mask).tril(mask.shape[-1] - 7)


_PLACES = forward._places


@BOTH
@pytest.mark.parametrize("fault", ["positions", "cache", "mask"])
def test_a_fault_of_the_engine_is_a_mismatch(
    saved: Path, dtype: torch.dtype, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "cache":
        monkeypatch.setattr(KVRows, "move", rows_not_moved)
    else:
        faulty = places_off_by_one if fault == "positions" else sees_siblings
        monkeypatch.setattr(forward, "_places", faulty)
    found = proofs(saved, dtype)
    assert verdict(found, dtype) == "not_lossless"
    assert any(p.mismatch is not None for p in found)


def test_logits_that_half_precision_cannot_tell_apart(saved: Path) -> None:
    """The margin is in the type's own logits; both tokens must be near the largest."""
    reference = Reference(saved, frozenset(), dtype=torch.bfloat16)
    with torch.inference_mode():
        logits_V = reference._model(torch.tensor([[1, 2, 3]])).logits[0, -1].double()
    order: Sequence[int] = logits_V.argsort(descending=True).tolist()
    margin, allowed = reference.margin([1, 2, 3], (order[0], order[5]))
    assert margin == float(logits_V[order[0]] - logits_V[order[5]])
    assert allowed == 4 * ulp(float(logits_V.max()), torch.bfloat16)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.0, torch.bfloat16, 2**-7),
        (20.0, torch.bfloat16, 2**-3),
        (-20.0, torch.float16, 2**-6),
        (0.7, torch.float16, 2**-11),
    ],
)
def test_units_in_the_last_place(value: float, dtype: torch.dtype, expected: float) -> None:
    assert ulp(value, dtype) == expected
    number = torch.tensor(abs(value), dtype=dtype)
    above = torch.nextafter(number, torch.tensor(torch.inf, dtype=dtype))
    assert float(above - number) == expected
    assert allowed_margin(value, dtype) == 4 * expected


@pytest.mark.parametrize(
    "family", [f for f in DECODED if f.model_type in ("llama", "mixtral", "gpt_oss")], ids=str
)
def test_a_margin_in_float64_is_nearly_that_of_float32(family: Family, tmp_path: Path) -> None:
    """Experts too: transformers' fastest way through them knows no float64."""
    path = build(family, tmp_path)
    stock = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        logits_V = stock(torch.tensor([[1, 2, 3]])).logits[0, -1]
    order = logits_V.argsort(descending=True).tolist()
    margin, _ = Reference(path, frozenset()).margin([1, 2, 3], (order[0], order[5]))
    expected = float(logits_V[order[0]] - logits_V[order[5]])
    assert margin == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_in_float32_the_margin_is_fixed() -> None:
    assert allowed_margin(20.0, torch.float32) == 1e-5
