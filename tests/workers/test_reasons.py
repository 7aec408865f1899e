"""What a stage's own errors become in the service."""

from __future__ import annotations

import pytest

from eagle3.errors import BadInput, DiskFull, EngineFailed, StageError, TargetUnavailable
from jobs.errors import FailureReason
from workers.execute import _said
from workers.supervisor import ChildEnd

KINDS = [BadInput, TargetUnavailable, DiskFull, EngineFailed]


@pytest.mark.parametrize("kind", KINDS)
def test_each_error_of_a_stage_has_its_reason(kind: type[StageError]) -> None:
    by_code = _said(ChildEnd(code=kind.exit_code), "prove")
    by_word = _said(ChildEnd(code=1, error={"reason": kind.reason, "message": "m"}), "prove")
    assert by_code.reason == by_word.reason == FailureReason(kind.reason)


def test_an_engine_that_failed_is_tried_again() -> None:
    assert FailureReason.ENGINE_FAILED.retryable
