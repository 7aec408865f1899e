"""What tests of several packages need."""

from __future__ import annotations

import pytest

from eagle3.engines.environments import Environment


@pytest.fixture(scope="session")
def vllm_environment() -> Environment:
    """The environment that `eagle3 engines install vllm` makes; made where it is not there."""
    environment = Environment("vllm")
    environment.install(lambda said: None)
    return environment
