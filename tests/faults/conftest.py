"""One rig for all faults: starting MLflow alone takes a while. After each test all runs again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.rig import Rig, rig


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig(tmp_path_factory.mktemp("faults")) as one:
        yield one


@pytest.fixture
def service(whole: Rig) -> Iterator[Rig]:
    """The service, well before the test and well after it."""
    yield whole
    whole.settle()
