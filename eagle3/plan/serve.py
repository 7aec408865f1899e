"""What a run will cost before it runs, and how its draft will be served. Torch-free.

Counts follow from the sizes of the target and the recipe; times follow from a measured or assumed
rate and are given as such.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass
from typing import Any

from eagle3.config import BenchmarkConfig, Recipe, TargetRef

TYPICAL_PROMPT_TOKENS = 64
"""Assumed length of a rendered prompt before any has been read."""


@dataclass(frozen=True, kw_only=True)
class TargetSize:
    """The sizes that a plan needs; all of them are in `target.json`."""

    parameters: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Upper estimates for one run."""

    response_tokens: int
    """Tokens that the target writes."""
    tokens: int
    """Prompt and response tokens, each stored once as features."""
    train_token_passes: int
    draft_parameters: int
    disk_bytes: int
    """Features, checkpoints, the best and the exported draft."""
    memory_bytes: int
    """The target in float32, the draft with gradients and two moments, one batch."""
    decode_flop: float
    """Arithmetic of regeneration."""
    extract_flop: float
    train_flop: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def draft_parameters(size: TargetSize, draft_vocab: int, intermediate: int | None = None) -> int:
    """Trained parameters of the draft, its query and output projections taken as H wide."""
    h, i = size.hidden_size, intermediate or size.intermediate_size
    attention = 2 * h * h + 2 * 2 * h * h + h * h
    return 3 * h * h + attention + 3 * h * i + draft_vocab * h


def estimate(
    recipe: Recipe,
    size: TargetSize,
    num_train: int,
    num_heldout: int,
    prompt_tokens: float = TYPICAL_PROMPT_TOKENS,
) -> Plan:
    """The cost of a recipe on a target.

    Args:
        num_train: training prompts.
        num_heldout: held-out prompts.
        prompt_tokens: mean length of a rendered prompt.
    """
    r, t = recipe.regenerate, recipe.train
    num_train *= r.answers
    train_responses = num_train * r.max_new_tokens
    if r.token_budget is not None and train_responses > r.token_budget:
        num_train = max(1, round(num_train * r.token_budget / train_responses))
        train_responses = r.token_budget
    responses = train_responses + num_heldout * r.max_new_tokens
    tokens = responses + round((num_train + num_heldout) * prompt_tokens)
    train_tokens = train_responses + round(num_train * prompt_tokens)
    vocab = min(t.draft_vocab_size, size.vocab_size)
    draft = draft_parameters(size, vocab, t.intermediate_size)
    feature_bytes = tokens * (4 * size.hidden_size * 2 + 12)
    batch_bytes = t.batch_tokens * (4 * vocab + 4 * 30 * size.hidden_size * t.ttt_steps)
    return Plan(
        response_tokens=responses,
        tokens=tokens,
        train_token_passes=round(train_tokens * t.epochs),
        draft_parameters=draft,
        disk_bytes=round(feature_bytes + draft * 4 * (2 * 3 + 3)),
        memory_bytes=round(size.parameters * 4 + draft * 16 + batch_bytes + 2**30),
        decode_flop=2.0 * size.parameters * tokens,
        extract_flop=2.0 * size.parameters * tokens,
        train_flop=6.0 * draft * train_responses * t.epochs * t.ttt_steps,
    )


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
    nodes = drafted_nodes(bench.depth, bench.top_k, bench.total_tokens)
    speculative = {"method": "eagle3", "model": "./draft", "num_speculative_tokens": bench.depth}
    vllm = ["--speculative-config", json.dumps(speculative)]
    sglang = [
        "--speculative-algorithm", "EAGLE3",
        "--speculative-draft-model-path", "./draft",
        "--speculative-num-steps", str(bench.depth),
        "--speculative-eagle-topk", str(bench.top_k),
        "--speculative-num-draft-tokens", str(nodes + 1),
    ]  # fmt: skip
    name = target.location if target.kind == "hub" else "TARGET_DIR"
    pinned = ["--revision", resolved.rpartition("@")[2]] if target.kind == "hub" else []
    launch = ["python", "-m", "sglang.launch_server", "--model-path", name]
    return {
        "target": resolved,
        "num_speculative_tokens": bench.depth,
        "vllm": {"args": vllm, "command": shlex.join(["vllm", "serve", name, *pinned, *vllm])},
        "sglang": {"args": sglang, "command": shlex.join([*launch, *pinned, *sglang])},
    }
