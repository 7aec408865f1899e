"""A diagnosis of two directories: read them, have the target answer, try every cause."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle3.data.local import default_device
from eagle3.diagnose import asking
from eagle3.diagnose.case import Case, Sign
from eagle3.diagnose.diagnosis import LOW, Diagnosis, diagnose
from eagle3.diagnose.evidence import Answers, ask
from eagle3.diagnose.reading import read
from eagle3.diagnose.served import served
from eagle3.diagnose.usage import wanted_layers
from eagle3.draft import DraftConfig
from eagle3.errors import BadInput
from eagle3.load import load_config
from eagle3.target import Target, load_tokenizer

RECORD = "target.json"
"""What a bundle has beside its draft: facts of the target that this was trained for."""


@dataclass(frozen=True)
class Asked:
    """What the user says of the case; `eagle3 diagnose --help` has a line on each."""

    prompts: str | None = None
    heldout: str = "demo"
    others: tuple[Path, ...] = ()
    flags: str = ""
    engine: str | None = None
    expected: float = LOW
    count: int = 16
    max_new_tokens: int = 64
    depth: int = 3


def examine(target_dir: Path, draft_dir: Path, asked: Asked) -> Diagnosis:
    """The diagnosis.

    Raises:
        BadInput: a directory or prompt file cannot be read, or there is no such engine.
        EngineFailed: the engine does not serve even the target alone.
    """
    target = _load(target_dir)
    found = asking.rows(asked.prompts or asked.heldout, asked.count)
    prompts = asking.as_served(load_tokenizer(target_dir), found)
    reading, raw = read(draft_dir, target, asked.engine or "vllm")
    if (differs := _other_sizes(reading.config, target)) is not None:
        return _unmeasured(differs, asked)
    layers = wanted_layers(reading.config.capture_layers, target.num_layers)

    def answers(one: Target, given: list[list[int]]) -> Answers:
        return ask(one, given, asked.max_new_tokens, layers, asked.depth)

    heldout = asking.rows(asked.heldout, asked.count) if asked.prompts else []
    case = Case(
        target,
        reading,
        raw,
        answers(target, prompts),
        answers,
        prompts,
        record(draft_dir),
        target_dir,
        asked.others,
        tuple(asking.renderings(target_dir, draft_dir, found)),
        asking.as_served(load_tokenizer(target_dir), heldout),
        asked.flags,
    )
    diagnosis = diagnose(case, asked.expected)
    if asked.engine is None:
        return diagnosis
    return served(diagnosis, case, target_dir, draft_dir, asked.engine, asked.max_new_tokens)


def record(draft_dir: Path) -> dict[str, Any]:
    """The facts of its target that lie with a draft, in its directory or, in a bundle, above."""
    for folder in (draft_dir, draft_dir.resolve().parent):
        path = folder / RECORD
        if path.is_file():
            facts = json.loads(path.read_text())
            return facts if isinstance(facts, dict) else {}
    return {}


def _load(folder: Path) -> Target:
    device = default_device()
    try:
        said = getattr(load_config(folder), "dtype", None)
        dtype = torch.float32 if device == "cpu" or said is None else said
        # The features that are read here are captured by hooks of their own.
        return Target.load(folder, dtype, device, capture_layers=(0, 0, 0))
    except (OSError, ValueError) as e:
        raise BadInput(
            f"{folder} does not load as a target: {str(e).splitlines()[0]}",
            "name a directory as transformers saves it",
        ) from None


def _other_sizes(config: DraftConfig, target: Target) -> str | None:
    """What of a draft's sizes no draft of this target has."""
    sizes = {
        "hidden size": (config.hidden_size, target.hidden_size),
        "vocabulary": (config.vocab_size, target.vocab_size),
    }
    differing = [f"{name} {ours}, the target's {theirs}"
                 for name, (ours, theirs) in sizes.items() if ours != theirs]  # fmt: skip
    return "; ".join(differing) or None


def _unmeasured(differs: str, asked: Asked) -> Diagnosis:
    sign = Sign("wrong target or revision", f"the draft has {differs}", certain=True)
    return Diagnosis(
        "cause found",
        f"The cause is wrong target or revision: {sign.text}. Nothing could be measured.",
        ["wrong target or revision"],
        [],
        1.0,
        [0.0] * asked.depth,
        1.0,
        [],
        [sign],
        [],
        [],
        0,
        0,
        asked.depth,
    )
