"""What tests of several rooms need."""

from __future__ import annotations

import pytest


@pytest.fixture
def quick_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which linears are fastest is measured in no time, and so by chance."""
    monkeypatch.setattr("eagle3.decode.linear._BUDGET_SECONDS", 0.0)
    monkeypatch.setattr("eagle3.decode.linear._BEYOND_CACHE", 1 << 14)
