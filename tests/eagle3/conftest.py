"""What tests of several rooms need."""

from __future__ import annotations

import pytest


@pytest.fixture
def quick_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which linears are fastest is measured in no time, and so by chance."""
    monkeypatch.setattr("eagle3.decode.linear._BUDGET_SECONDS", 0.0)
    monkeypatch.setattr("eagle3.decode.linear._BEYOND_CACHE", 1 << 14)


@pytest.fixture(
    params=[
        pytest.param("llamacpp", marks=pytest.mark.slow),  # its converter imports torch
        pytest.param("vllm", marks=pytest.mark.vllm),
    ]
)
def server(request: pytest.FixtureRequest) -> str:
    """The name of an engine of others that serves on a CPU, installed."""
    name = str(request.param)
    if name == "vllm":
        request.getfixturevalue("vllm_environment")
    return name
