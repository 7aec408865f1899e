"""An audit that did not happen is not called clean."""

from __future__ import annotations

import datetime
import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FILE = Path(__file__).parents[1] / ".ci" / "audit.py"
HOLE = {"id": "PYSEC-1", "fix_versions": ["2.0"]}
DAY = datetime.date(2026, 6, 1)


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(*found: dict[str, Any]) -> str:
    return json.dumps({"dependencies": list(found), "fixes": []})


@pytest.mark.parametrize(
    ("stdout", "says", "code"),
    [
        (answer({"name": "a", "version": "1", "vulns": []}), "clean: 1 packages", 0),
        (answer({"name": "a", "version": "1", "vulns": [HOLE]}), "a 1: PYSEC-1 (fixed in 2.0)", 1),
        (answer({"name": "a", "skip_reason": "unknown"}), "NOT AUDITED: skipped a", 3),
        (answer(), "NOT AUDITED", 3),
        ("", "NOT AUDITED: cannot connect", 3),
    ],
)
def test_verdicts(audit: ModuleType, stdout: str, says: str, code: int) -> None:
    text, found = audit.verdict(stdout, "trace\ncannot connect\n")
    assert says in text
    assert found == code


def test_what_is_allowed_is_so_for_a_time(audit: ModuleType) -> None:
    text = '[[allowed]]\nid = "A"\nreason = "not called"\nuntil = 2026-06-01\n'
    assert audit.allowed(text, DAY) == ["A"]
    assert audit.allowed(text, DAY + datetime.timedelta(days=1)) == []
    with pytest.raises(SystemExit, match="reason"):
        audit.allowed('[[allowed]]\nid = "A"\nuntil = 2026-06-01\n', DAY)


def test_the_recorded_list_is_well_formed(audit: ModuleType) -> None:
    audit.allowed((FILE.parent / "audit-allowed.toml").read_text(), DAY)
