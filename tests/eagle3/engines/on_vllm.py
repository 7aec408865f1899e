"""A golden checkpoint in a real vLLM, and what must come of it."""

from __future__ import annotations

import math
from pathlib import Path

from eagle3.engines.engine import Drafted, Running, Sampling, Settings
from eagle3.engines.vllm import Vllm
from tests.eagle3.engines.checkpoints import KEPT, Checkpoint


def start(checkpoint: Checkpoint, tokens: int, work: Path) -> Running:
    settings = Settings(
        tokens, context=128, slots=16, memory_gib=0.25, threads=1, ready_seconds=900
    )
    draft = checkpoint.draft if tokens else None
    return Vllm().start(checkpoint.target, draft, settings, work)


def check_exact(running: Running, golden: Checkpoint, chain: int, new: int = 14) -> None:
    """All is accepted at every position where the draft knows the words, and else nothing."""
    known, unknown = golden.prompts(4), golden.prompts(3, start=KEPT)
    before = running.metrics()
    answers = running.generate(known, Sampling(new))
    assert [a.tokens for a in answers] == [golden.chain(p[-1], new) for p in known]
    rounds = len(known) * math.ceil((new - 1) / (chain + 1))
    drafted = running.metrics() - before
    assert drafted == Drafted(rounds, rounds * chain, rounds * chain, (rounds,) * chain)
    assert drafted.tau == chain + 1
    before = running.metrics()
    answers = running.generate(unknown, Sampling(4))
    assert [a.tokens for a in answers] == [golden.chain(p[-1], 4) for p in unknown]
    drafted = running.metrics() - before
    assert (drafted.rounds, drafted.accepted, drafted.accepted_at) == (9, 0, (0,) * chain)
