"""The demonstration's checkpoints are as far from their target as they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.attach_demo import perturb, row
from eagle3.attach.fingerprint import distance, fingerprint
from tests.tiny import build_random_target


def test_a_change_is_of_the_size_that_was_asked_for(tmp_path: Path) -> None:
    target = build_random_target(tmp_path / "target")
    here = fingerprint(target)
    small = distance(here, fingerprint(perturb(target, tmp_path / "small", 0.01)))
    large = distance(here, fingerprint(perturb(target, tmp_path / "large", 0.2)))
    assert small is not None
    assert large is not None
    assert large / small == pytest.approx(20, rel=0.1)
    assert large == pytest.approx(0.2, rel=0.4), "norms are tensors, too, and stay"


def test_a_row_of_the_table() -> None:
    tried = {"fits": True, "tau": 1.5, "distance": 0.0123}
    found = {
        "status": "attached_by_reuse", "decision": {"mode": "reuse", "tried": [tried]},
        "draft": {"metrics": {"tau": 1.5, "speedup": 1.1}}, "seconds": 90.0,
    }  # fmt: skip
    assert row("small", 0.005, found) == (
        "| small (0.005) | 0.0123 | 1.50 | reuse | attached_by_reuse | 1.50 | 1.10 | 1.5 min |"
    )
    nothing = {"status": "failed", "decision": None, "draft": None, "seconds": 6.0}
    assert "–" in row("large", 0.1, nothing)
