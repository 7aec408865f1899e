"""What is decided from which figures."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.attach_decision import Tried, decide
from jobs.attach_policy import AttachPolicy
from jobs.spec import Gates


def tried(id: str = "dft_1", **changes: Any) -> Tried:
    """A draft that keeps 95% of its acceptance of 2.0."""
    known: dict[str, Any] = {
        "name": "eagle3--a", "lineage": "x", "registered_tau": 2.0, "fits": True, "tau": 1.95,
        "speedup": 1.3, "lossless": True, "compared_tokens": 100, "same_layers": True,
    }  # fmt: skip
    return Tried(id=id, **(known | changes))


def mode(*found: Tried, gates: Gates | None = None, **policy: Any) -> str:
    return decide(AttachPolicy(**policy), gates or Gates(), found).mode


@pytest.mark.parametrize(
    ("tau", "expected"), [(1.95, "reuse"), (1.6, "warm_start"), (1.1, "train")]
)
def test_by_how_much_of_the_acceptance_is_left(tau: float, expected: str) -> None:
    assert mode(tried(tau=tau)) == expected


def test_nothing_is_known() -> None:
    found = decide(AttachPolicy(), Gates(), [])
    assert found.mode == "train"
    assert "no registered draft" in found.why


@pytest.mark.parametrize(
    ("gates", "changes"),
    [
        (Gates(), {"lossless": False}),
        (Gates(min_tau=1.99), {}),
        (Gates(min_speedup=1.5), {}),
    ],
)
def test_a_draft_that_misses_a_gate_is_not_reused(gates: Gates, changes: dict[str, Any]) -> None:
    assert mode(tried(**changes), gates=gates) == "warm_start"


def test_the_gate_of_a_job_that_does_not_ask_for_a_proof() -> None:
    assert mode(tried(lossless=False), gates=Gates(lossless=False)) == "reuse"


def test_it_is_no_worse_than_the_incumbent() -> None:
    incumbent = tried("dft_2", tau=2.6, registered_tau=4.0, incumbent=True)
    found = decide(AttachPolicy(), Gates(), [tried(), incumbent])
    assert found.mode == "warm_start"
    assert found.draft_id == "dft_2"
    assert (found.incumbent, found.incumbent_tau) == ("dft_2", 2.6)
    assert mode(tried(), incumbent, tolerance=0.3) == "reuse"


def test_the_better_of_two_is_reused() -> None:
    better = tried("dft_2", tau=1.99)
    assert decide(AttachPolicy(), Gates(), [tried(), better]).draft_id == "dft_2"


def test_what_is_not_allowed_is_not_done() -> None:
    assert mode(tried(), allow=("warm_start", "train")) == "warm_start"
    assert mode(tried(), allow=("train",)) == "train"
    found = decide(AttachPolicy(allow=("reuse",)), Gates(), [tried(tau=1.5)])
    assert (found.mode, found.incompatible) == ("none", False)
    assert "90%" in found.why


def test_none_fits_and_none_may_be_trained() -> None:
    unfit = tried(fits=False, why="hidden size 64 where this target has 128")
    found = decide(AttachPolicy(allow=("reuse", "warm_start")), Gates(), [unfit])
    assert (found.mode, found.incompatible) == ("none", True)
    scratch = decide(AttachPolicy(), Gates(), [unfit])
    assert scratch.mode == "train"
    assert "hidden size 64" in scratch.why


def test_a_draft_of_other_layers_serves_but_is_not_trained_on() -> None:
    other = tried(same_layers=False)
    assert mode(other) == "reuse"
    assert mode(other, allow=("warm_start", "train")) == "train"


def test_a_draft_whose_own_acceptance_is_not_known_is_not_judged_by_it() -> None:
    assert mode(tried(registered_tau=None)) == "train"
