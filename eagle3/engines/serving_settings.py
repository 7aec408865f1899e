"""Ready settings for each engine, from the draft length that suits each number of sequences.

Read in the engines' own sources: vLLM 0.32 (`v1/spec_decode/dynamic/utils.py`), SGLang 0.5.23
(`srt/speculative/adaptive_spec_params.py`), llama.cpp b11434 (`common/arg.cpp`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3.plan.serve import llamacpp_flags, sglang_flags
from eagle3.run import write_json

Ranges = Sequence[tuple[int, int, int]]
"""First and last number of sequences, and the draft length for them; 0 is no draft. The first one
begins at 1, and each one where the last one ended."""

VLLM, SGLANG, SGLANG_ADAPTIVE, LLAMA_CPP = (
    "vllm.json",
    "sglang.json",
    "sglang-adaptive.json",
    "llamacpp.json",
)


def vllm(ranges: Ranges, draft: str) -> dict[str, Any] | None:
    """vLLM's `--speculative-config`; None where no load takes a draft.

    A schedule is given only where there is something to switch. vLLM goes on with the last length
    beyond the last range.
    """
    longest = _longest(ranges)
    if not longest:
        return None
    config: dict[str, Any] = {
        "method": "eagle3",
        "model": draft,
        "num_speculative_tokens": longest,
    }
    if len(ranges) > 1:
        config["num_speculative_tokens_per_batch_size"] = [list(entry) for entry in ranges]
    return config


def sglang(ranges: Ranges, draft: str, adaptive: str = SGLANG_ADAPTIVE) -> list[str] | None:
    """Arguments of `sglang.launch_server`; None where no load takes a draft.

    Args:
        adaptive: path of the file with `sglang_adaptive`.
    """
    longest = _longest(ranges)
    if not longest:
        return None
    flags = sglang_flags(draft, longest, 1, longest)
    if len(ranges) > 1:
        flags += ["--speculative-adaptive", "--speculative-adaptive-config", adaptive]
    return flags


def sglang_adaptive(ranges: Ranges) -> dict[str, Any]:
    """SGLang's adaptive settings: from each batch size on, one number of steps.

    One candidate leaves its policy nothing to choose: what was measured is what is served.
    """
    return {str(first): {"candidate_steps": [drafted]} for first, _, drafted in ranges}


def llama_cpp(ranges: Ranges, draft: str, p_min: float = 0.0) -> dict[str, list[str]]:
    """Arguments of `llama-server` by the answers in progress: it drafts alike whatever the load.

    With a draft it has one slot, as it was measured (`eagle3/engines/llamacpp.py` says why).
    """
    return {
        f"{first}-{last}": _llama_cpp(drafted, draft, p_min, last)
        for first, last, drafted in ranges
    }


def _llama_cpp(drafted: int, draft: str, p_min: float, slots: int) -> list[str]:
    if not drafted:
        return ["--parallel", str(slots)]
    return [*llamacpp_flags(draft, drafted, p_min), "--parallel", "1"]


def write(ranges: Ranges, folder: Path, p_min: float = 0.0) -> list[Path]:
    """Write a file for each engine; the draft is `./draft` there, or `./draft.gguf`."""
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Any] = {
        VLLM: vllm(ranges, "./draft"),
        SGLANG: sglang(ranges, "./draft", f"./{SGLANG_ADAPTIVE}"),
        SGLANG_ADAPTIVE: sglang_adaptive(ranges) if len(ranges) > 1 else None,
        LLAMA_CPP: llama_cpp(ranges, "./draft.gguf", p_min),
    }
    for name in files:
        (folder / name).unlink(missing_ok=True)  # of an earlier finding
    for name, content in files.items():
        if content is not None:
            write_json(folder / name, content)
    return [folder / name for name, content in files.items() if content is not None]


def command(ranges: Ranges, target: str) -> str:
    """The one line that serves a target with vLLM by these settings."""
    config = vllm(ranges, "./draft")
    said = "" if config is None else f" --speculative-config '{json.dumps(config)}'"
    return f"vllm serve {target}{said}"


def _longest(ranges: Ranges) -> int:
    return max(drafted for _, _, drafted in ranges)
