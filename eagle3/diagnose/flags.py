"""Causes that lie in how the serving engine is started: the wrong method, or none at all."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from eagle3.diagnose.case import Case, Sign, Trial
from eagle3.export import official

SGLANG_DRAFT = ("--speculative-draft-model-path", "--speculative-draft-model")
SERVED_RIGHT = {
    "SGLang": "--speculative-algorithm EAGLE3",
    "vLLM": '"method": "eagle3"',
    "llama.cpp": "--spec-type draft-eagle3",
}


def flags(case: Case) -> Iterator[Trial | Sign]:
    """The engine's command line, and the architecture that the draft's config names."""
    for name in case.raw.get("architectures") or ():
        if re.search(r"eagle(?!_?3)", name, re.IGNORECASE) and "eagle3" not in name.lower():
            text = f"config.json names the architecture {name}, an EAGLE-1 draft"
            yield Sign("engine flags", f"{text}; expected {official.ARCHITECTURE}", certain=True)
    for text in wrong(case.flags):
        yield Sign("engine flags", text, certain=True)


def wrong(command: str) -> Iterator[str]:
    """What of a command line keeps an EAGLE-3 draft from drafting."""
    words: list[str] = []
    for word in shlex.split(command):
        words += word.split("=", 1) if word.startswith("-") else [word]
    said = dict(pairwise([*words, ""]))
    if any(flag in said for flag in SGLANG_DRAFT) or "--speculative-algorithm" in said:
        method = said.get("--speculative-algorithm", "")
        if method.upper() != "EAGLE3":
            yield _told("SGLang", method)
    if (value := said.get("--speculative-config") or said.get("--speculative_config")) is not None:
        config = _json(value)
        if config is None:
            yield f"vLLM's --speculative-config is no JSON object: {value}"
        elif config.get("method", "eagle3") != "eagle3":
            yield _told("vLLM", str(config["method"]))
        elif not config.get("num_speculative_tokens"):
            yield "vLLM is told no num_speculative_tokens, and a draft's config does not say it"
    if "--model-draft" in said or "-md" in said or "--spec-type" in said:
        method = said.get("--spec-type", "")
        if method != "draft-eagle3":
            yield _told("llama.cpp", method)


def _told(engine: str, method: str) -> str:
    found = f"the method {method}" if method else "no method"
    return f"{engine} is told {found}; expected {SERVED_RIGHT[engine]}"


def _json(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
