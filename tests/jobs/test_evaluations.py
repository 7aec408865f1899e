"""What an evaluation says of a draft, and of two of them."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.evaluations import OF_PROBE, comparison, result_of
from jobs.spec import JobSpec

ONE: dict[str, Any] = {
    "id": "dft_a", **dict.fromkeys(OF_PROBE), "fits": True, "why": "", "tau": 2.0, "speedup": 1.3,
    "lossless": True,
}  # fmt: skip
OTHER = {**ONE, "id": "dft_b", "tau": 1.9}
PRINT = {"weights_sha256": "w" * 64}


@pytest.mark.parametrize(
    ("gain_ci", "said"),
    [
        ((0.01, 0.2), "better"),
        ((-0.05, 0.2), "no_worse"),
        ((-0.05, -0.01), "no_worse"),
        ((-0.3, -0.01), "worse"),
        ((-0.3, 0.2), "undecided"),
    ],
)
def test_what_an_interval_says(gain_ci: tuple[float, float], said: str) -> None:
    assert comparison(gain_ci, 0.1) == said


def result(gates: dict[str, Any] | None = None, **summary: Any) -> dict[str, Any]:
    evaluate = {"draft": "dft_a", "against": "dft_b", "tolerance": 0.05}
    spec = JobSpec.model_validate({"target": "demo", "evaluate": evaluate, "gates": gates or {}})
    found = {"fingerprint": PRINT, "probed": [ONE, OTHER], **summary}
    return result_of(spec, found, {"tau": 2.2})


def missed(found: dict[str, Any]) -> list[str]:
    return [c["name"] for c in found["gates"]["checks"] if not c["passed"]]


def test_the_margin_is_a_share_of_the_other_ones_length() -> None:
    found = result(compared={"tau": 0.1, "tau_ci": (-0.09, 0.3)})
    assert found["against"]["margin"] == pytest.approx(0.095)
    assert found["against"]["comparison"] == "no_worse"
    assert found["registered_tau"] == 2.2
    assert missed(found) == []


def test_gates_hold_or_not() -> None:
    worse = {"tau": -0.4, "tau_ci": (-0.5, -0.3)}
    found = result({"min_tau": 2.1}, compared=worse, probed=[{**ONE, "lossless": False}, OTHER])
    assert missed(found) == ["lossless", "min_tau", "against"]
    assert not found["gates"]["passed"]


def test_where_it_does_not_fit_no_gate_holds() -> None:
    none = {
        **ONE,
        "fits": False,
        "why": "other sizes",
        "tau": 1.0,
        "speedup": 0.0,
        "lossless": None,
    }
    found = result({"min_tau": 1.2}, compared=None, probed=[none, OTHER])
    assert missed(found) == ["lossless", "min_tau", "against"]
    assert found["why"] == "other sizes"


def test_one_that_does_not_fit_is_neither_better_nor_worse() -> None:
    found = result(compared=None, probed=[ONE, {**OTHER, "fits": False, "tau": 1.0}])
    assert found["against"]["comparison"] == "undecided"
    assert missed(found) == ["against"]
