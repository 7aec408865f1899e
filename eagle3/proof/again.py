"""Prove once more and compare: `eagle3 prove RUN --again`."""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from eagle3.data.records import read_json
from eagle3.errors import BadInput
from eagle3.process import alone, stop_on_signals
from eagle3.progress import reporter
from eagle3.proof.certificate import code_sha256
from eagle3.provenance import hardware
from eagle3.run import (
    Context,
    Stage,
    changed_outputs,
    current,
    read_config,
    read_manifest,
    sha256_json,
)

_GONE = "—"


def prove_again(stage: Stage, run: Path, stream: TextIO | io.TextIOBase | None = None) -> list[str]:
    """Run the proof anew, beside the certificate that there is; returns what differs: fields, and
    files that are not as the proof left them.

    The certificate itself is left as it is. It goes on where an earlier such run was stopped, if
    that was of the same draft, target, prompts and code.

    Raises:
        BadInput: there is no certificate yet, or it cannot be read.
    """
    started, progress = time.monotonic(), reporter(stage.name, run, stream)
    with stop_on_signals() as stop, alone(run, stage.name, progress.info, stop):
        before, edited = _certificate(current(run, stage.name))
        config = read_config(run)
        inputs = stage.inputs(run, config)
        digests = {name: read_manifest(folder)["outputs_digest"] for name, folder in inputs.items()}
        key = sha256_json([stage.config_key(config), digests, code_sha256(), hardware()])[:32]
        out = run / "stages" / stage.name / "again" / key
        out.mkdir(parents=True, exist_ok=True)
        stage.function(Context(run, stage.name, config, out, inputs, progress, stop))
        after = read_json(out / "certificate.json")
        shutil.rmtree(out.parent)
    found = differences(before, after)
    for name in edited:
        progress.warning(f"{name} is not as the proof left it; eagle3 prove {run} writes it again")
    for name, (old, new) in found.items():
        progress.warning(f"{name}: {old} then, {new} now")
    progress.emit(
        "result",
        cached=False,
        seconds=round(time.monotonic() - started, 3),
        summary={"same": not found and not edited, "differ": [*edited, *found]},
    )
    return [*edited, *found]


def _certificate(folder: Path) -> tuple[Any, list[str]]:
    """What it says, and which files of the proof were edited since, or are gone."""
    path = folder / "certificate.json"
    try:
        said = read_json(path)
    except (FileNotFoundError, ValueError):
        raise BadInput(
            f"{path} is gone or is not JSON", "write it again: the same command without --again"
        ) from None
    return said, list(changed_outputs(folder))


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
