"""Prove once more and compare: `eagle3 prove RUN --again`."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from eagle3.data.records import read_json
from eagle3.process import alone, stop_on_signals
from eagle3.run import Context, Stage, current, read_config, reporter

_GONE = "—"


def prove_again(stage: Stage, run: Path, stream: TextIO | io.TextIOBase | None = None) -> list[str]:
    """Run the proof anew, beside the certificate that there is; returns the fields that differ.

    The certificate itself is left as it is. It goes on where an earlier such run was stopped.

    Raises:
        BadInput: there is no certificate yet.
    """
    before = read_json(current(run, stage.name) / "certificate.json")
    started, progress = time.monotonic(), reporter(stage.name, run, stream)
    out = run / "stages" / stage.name / "again"
    with stop_on_signals() as stop, alone(run, stage.name, progress.info, stop):
        config = read_config(run)
        inputs = stage.inputs(run, config)
        out.mkdir(parents=True, exist_ok=True)
        stage.function(Context(run, stage.name, config, out, inputs, progress, stop))
        after = read_json(out / "certificate.json")
        shutil.rmtree(out)
    found = differences(before, after)
    for name, (old, new) in found.items():
        progress.warning(f"{name}: {old} then, {new} now")
    progress.emit(
        "result",
        cached=False,
        seconds=round(time.monotonic() - started, 3),
        summary={"same": not found, "differ": list(found)},
    )
    return list(found)


def differences(before: Any, after: Any) -> dict[str, tuple[Any, Any]]:
    """Fields of two JSON values that are not the same, by path."""
    old, new = dict(_flat(before)), dict(_flat(after))
    return {
        name: (old.get(name, _GONE), new.get(name, _GONE))
        for name in [*old, *(name for name in new if name not in old)]
        if old.get(name, _GONE) != new.get(name, _GONE)
    }


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield path, value
    for key, inner in items:
        yield from _flat(inner, f"{path}.{key}" if path else str(key))
