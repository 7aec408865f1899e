"""How a draft is served: ready command lines, with the settings that were measured."""

from __future__ import annotations

import json
import shlex
from typing import Any

from eagle3.config import BenchmarkConfig, TargetRef

FORMATS = {
    "official": ("vllm", "sglang"),
    "speculators": ("vllm",),
    "gguf": ("llamacpp",),
    "openvino": ("openvino",),
}
"""Which engines load a format."""


def drafted_nodes(depth: int, top_k: int, total: int | None) -> int:
    """Draft nodes of a round: what is asked for, or depth * top_k; no more than a tree can have."""
    return min(total or depth * top_k, top_k + (depth - 1) * top_k**2)


def sglang_flags(draft: str, steps: int, top_k: int, nodes: int) -> list[str]:
    """SGLang's arguments for a draft; it counts the root among the draft tokens."""
    return [
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", draft,
        "--speculative-num-steps", str(steps),
        "--speculative-eagle-topk", str(top_k),
        "--speculative-num-draft-tokens", str(nodes + 1),
    ]  # fmt: skip


def llamacpp_flags(draft: str, depth: int, p_min: float = 0.0) -> list[str]:
    """`llama-server`'s arguments for a draft; it drafts chains alone."""
    return [
        "--model-draft", draft,
        "--spec-type", "draft-eagle3",
        "--spec-draft-n-max", str(depth),
        "--spec-draft-p-min", f"{p_min:g}",
    ]  # fmt: skip


def serving(target: TargetRef, resolved: str, bench: BenchmarkConfig) -> dict[str, Any]:
    """Ready flags and command lines for each engine, with the settings that were measured.

    vLLM and SGLang load the draft from a local directory, `./draft`. Only a hub model has a name
    that they know; any other target is served from its files, `TARGET_DIR`. llama.cpp wants both as
    GGUF, which `eagle3 serve` writes.

    Args:
        resolved: what the reference was pinned to; of a hub model `org/name@commit`.
    """
    depth, top_k, total = bench.shape
    nodes = drafted_nodes(depth, top_k, total)
    speculative = {"method": "eagle3", "model": "./draft", "num_speculative_tokens": depth}
    vllm = ["--speculative-config", json.dumps(speculative)]
    sglang = sglang_flags("./draft", depth, top_k, nodes)
    llamacpp = llamacpp_flags("./draft.gguf", depth)
    name = target.location if target.kind == "hub" else "TARGET_DIR"
    pinned = ["--revision", resolved.rpartition("@")[2]] if target.kind == "hub" else []
    launch = ["python", "-m", "sglang.launch_server", "--model-path", name]
    return {
        "target": resolved,
        "num_speculative_tokens": depth,
        "vllm": {"args": vllm, "command": shlex.join(["vllm", "serve", name, *pinned, *vllm])},
        "sglang": {"args": sglang, "command": shlex.join([*launch, *pinned, *sglang])},
        "llamacpp": {
            "args": llamacpp,
            "command": shlex.join(["llama-server", "--model", "target.gguf", *llamacpp]),
        },
    }
