"""What a plan promises, and the commands that serve a draft."""

from __future__ import annotations

import json
import shlex

import pytest

from eagle3.config import BenchmarkConfig, TargetRef, load_recipe
from eagle3.plan import TargetSize, drafted_nodes, estimate, serving

SMALL = TargetSize(
    parameters=134_515_008, hidden_size=576, intermediate_size=1536, vocab_size=49152
)


def test_a_token_budget_bounds_what_is_written() -> None:
    plan = estimate(load_recipe("quick"), SMALL, num_train=1200, num_heldout=64)
    assert plan.response_tokens == 24000 + 64 * 96
    assert plan.tokens > plan.response_tokens
    whole = estimate(load_recipe("standard"), SMALL, num_train=1200, num_heldout=64)
    assert whole.response_tokens == (2 * 1200 + 64) * 128
    assert whole.disk_bytes > plan.disk_bytes


def test_the_draft_is_about_as_large_as_planned() -> None:
    plan = estimate(load_recipe("quick"), SMALL, num_train=100, num_heldout=8)
    # fc, attention, MLP and head of the demo's draft, counted tensor by tensor.
    exact = 3 * 576**2 + 1152 * (576 + 192 + 192) + 576**2 + 3 * 576 * 1536 + 8192 * 576
    assert 1.0 <= plan.draft_parameters / exact < 1.15


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
