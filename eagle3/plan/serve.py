"""How a draft is served: ready command lines, with the settings that were measured."""

from __future__ import annotations

import json
import shlex
from typing import Any

from eagle3.config import BenchmarkConfig, TargetRef


def drafted_nodes(depth: int, top_k: int, total: int | None) -> int:
    """Draft nodes of a round: what is asked for, or depth * top_k; no more than a tree can have."""
    return min(total or depth * top_k, top_k + (depth - 1) * top_k**2)


def serving(target: TargetRef, resolved: str, bench: BenchmarkConfig) -> dict[str, Any]:
    """Ready flags and command lines for vLLM and SGLang, with the settings that were measured.

    Both load the draft from a local directory, `./draft`. Only a hub model has a name that they
    know; any other target is served from its files, `TARGET_DIR`.

    Args:
        resolved: what the reference was pinned to; of a hub model `org/name@commit`.
    """
    depth, top_k, total = bench.shape
    nodes = drafted_nodes(depth, top_k, total)
    speculative = {"method": "eagle3", "model": "./draft", "num_speculative_tokens": depth}
    vllm = ["--speculative-config", json.dumps(speculative)]
    sglang = [
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", "./draft",
        "--speculative-num-steps", str(depth),
        "--speculative-eagle-topk", str(top_k),
        "--speculative-num-draft-tokens", str(nodes + 1),
    ]  # fmt: skip
    name = target.location if target.kind == "hub" else "TARGET_DIR"
    pinned = ["--revision", resolved.rpartition("@")[2]] if target.kind == "hub" else []
    launch = ["python", "-m", "sglang.launch_server", "--model-path", name]
    return {
        "target": resolved,
        "num_speculative_tokens": depth,
        "vllm": {"args": vllm, "command": shlex.join(["vllm", "serve", name, *pinned, *vllm])},
        "sglang": {"args": sglang, "command": shlex.join([*launch, *pinned, *sglang])},
    }
