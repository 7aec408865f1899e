"""A target, and a draft that has learned it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle3.diagnose.case import Case
from eagle3.diagnose.diagnosis import Diagnosis, diagnose
from eagle3.diagnose.evidence import Answers, ask
from eagle3.diagnose.reading import Reading, read
from eagle3.diagnose.usage import wanted_layers
from eagle3.export import official
from eagle3.target import Target
from tests.eagle3.diagnose.lagged import (
    CAPTURE,
    FAMILIAR,
    LAYERS,
    STRANGE,
    Lagged,
    build_lagged,
    prompts,
    train_draft,
)

TOKENS, DEPTH = 20, 3
KEPT_LAYERS = range(LAYERS + 1)


@dataclass(frozen=True)
class Learned:
    """The pair on disk, and the case that a healthy draft is."""

    lagged: Lagged
    draft: Path
    case: Case

    @property
    def reading(self) -> Reading:
        return self.case.reading

    def diagnose(self, reading: Reading, expected: float = 1.3, **case: Any) -> Diagnosis:
        return diagnose(replace(self.case, reading=reading, **case), expected)


def answers(target: Target, asked: list[list[int]]) -> Answers:
    return ask(target, asked, TOKENS, KEPT_LAYERS, DEPTH)


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Learned:
    folder = tmp_path_factory.mktemp("learned")
    lagged = build_lagged(folder / "target")
    official.save(train_draft(lagged), folder / "draft", LAYERS, torch.float32)
    asked = prompts(FAMILIAR, 8, seed=9)
    reading, raw = read(folder / "draft", lagged.target)
    assert reading.config.capture_layers == CAPTURE
    case = Case(lagged.target, reading, raw, answers(lagged.target, asked), answers, asked)
    assert case.answers.kept >= wanted_layers(CAPTURE, LAYERS)
    return Learned(lagged, folder / "draft", case)


@pytest.fixture(scope="session")
def strange() -> list[list[int]]:
    """Prompts of words that the draft was never taught."""
    return prompts(STRANGE, 8, seed=10)
