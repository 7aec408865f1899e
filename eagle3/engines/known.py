"""The engines by name, and the versions of each that this package was tested with."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Mapping

from eagle3.engines.engine import Engine
from eagle3.errors import BadInput

ENGINES: Mapping[str, str] = {
    "native": "eagle3.engines.native:Native",
    "llamacpp": "eagle3.engines.llamacpp:LlamaCpp",
    "vllm": "eagle3.engines.vllm:Vllm",
    "sglang": "eagle3.engines.sglang:Sglang",
    "openvino": "eagle3.engines.openvino:OpenVino",
}

ABOUT: Mapping[str, str] = {
    "native": "ours, in this process; exact",
    "llamacpp": "starts in a second; the same tokens with and without a draft; CPU",
    "vllm": "OpenAI server; CPU or GPU, many requests at once",
    "sglang": "OpenAI server; GPU",
    "openvino": "CPU; greedy answers alone are exact",
}
"""What each is good for."""

TESTED: Mapping[str, tuple[str, str]] = {
    "llamacpp": ("2026.10.11549", "2026.10.11549"),
    "vllm": ("0.32.0", "0.32.0"),
    "sglang": ("0.5.23", "0.5.23"),
    "openvino": ("2026.4.1", "2026.4.1"),
}
"""First and last version, both tested."""


class UntestedVersion(UserWarning):
    """An engine is older or newer than those that were tested."""


def engine(name: str) -> Engine:
    """The engine of that name; its libraries load only when it starts.

    Raises:
        BadInput: there is none.
    """
    if name not in ENGINES:
        raise BadInput(f"no engine is called {name!r}", f"choose of: {', '.join(ENGINES)}")
    module, _, kind = ENGINES[name].partition(":")
    made: Engine = getattr(importlib.import_module(module), kind)()
    return made


def tested_range(name: str) -> str | None:
    """The range in words; None for our own engine, which has none."""
    if name not in TESTED:
        return None
    first, last = TESTED[name]
    return first if first == last else f"{first} to {last}"


def untested(name: str, version: str) -> str | None:
    """What to say where a version lies outside the tested range; None where it lies within."""
    if name not in TESTED:
        return None
    first, last = TESTED[name]
    if _numbers(first) <= _numbers(version)[: len(_numbers(last))] <= _numbers(last):
        return None
    return f"{name} {version} was not tested; tested: {tested_range(name)}"


def check_version(engine: Engine) -> None:
    """Warn where the installed version lies outside the tested range."""
    if (said := untested(engine.name, engine.version())) is not None:
        warnings.warn(said, UntestedVersion, stacklevel=3)


def _numbers(version: str) -> list[int]:
    """`0.32.0+cpu` to [0, 32, 0]."""
    return [int(n) for n in re.findall(r"\d+", version.partition("+")[0])]
