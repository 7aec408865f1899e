"""One embedded service for the tests that can share it: starting MLflow alone takes a while."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.up import Inputs, Up, running


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return Inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """`updraft up` with no setting but short waits: a killed worker is missed after seconds."""
    up = Up(
        tmp_path_factory.mktemp("embedded"),
        lease_seconds="10",
        heartbeat_seconds="2",
        sweep_seconds="1",
        retry_base_seconds="0.2",
    )
    with running(up):
        yield up
