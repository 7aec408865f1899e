"""The commands that serve a draft."""

from __future__ import annotations

import json
import shlex

import pytest

from eagle3.config import BenchmarkConfig, TargetRef
from eagle3.plan import drafted_nodes, serving


def test_a_hub_model_is_served_by_name_at_its_revision() -> None:
    flags = serving(TargetRef.parse("org/name@main"), "org/name@" + "a" * 40, BenchmarkConfig())
    words = shlex.split(flags["vllm"]["command"])
    assert words[:5] == ["vllm", "serve", "org/name", "--revision", "a" * 40]
    assert json.loads(words[-1])["num_speculative_tokens"] == 3
    assert "--speculative-num-draft-tokens 4" in flags["sglang"]["command"]


def test_any_other_target_is_served_from_its_files() -> None:
    flags = serving(TargetRef.parse("demo"), "demo@sha256:abc", BenchmarkConfig(depth=2))
    assert flags["vllm"]["command"].startswith("vllm serve TARGET_DIR --speculative-config")


@pytest.mark.parametrize(
    ("depth", "top_k", "total", "nodes"),
    [(3, 1, None, 3), (3, 1, 60, 3), (4, 2, None, 8), (2, 3, 60, 12), (2, 3, 5, 5)],
)
def test_a_round_drafts_no_more_nodes_than_its_tree_can_have(
    depth: int, top_k: int, total: int | None, nodes: int
) -> None:
    assert drafted_nodes(depth, top_k, total) == nodes
    bench = BenchmarkConfig(depth=depth, top_k=top_k, total_tokens=total)
    command = serving(TargetRef.parse("demo"), "demo@sha256:abc", bench)["sglang"]["command"]
    assert f"--speculative-num-draft-tokens {nodes + 1}" in command
