"""Golden checkpoints in a real vLLM: every acceptance is known in advance.

A server takes from 20 seconds to start, so each answers for several things at once: a family with a
chain length, and one captured layer, a usual one or one that the config lists.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3.engines.engine import Sampling
from tests.eagle3.engines.checkpoints import CAPTURE, KEPT, OTHERS, VOCAB, Family, build
from tests.eagle3.engines.on_vllm import check_exact, start

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("vllm_environment"),
]


@pytest.mark.parametrize(
    ("family", "chain", "slot", "layers"),
    [
        ("llama", 1, 1, OTHERS),
        ("llama", 2, 0, CAPTURE),
        ("llama", 3, 1, CAPTURE),
        ("llama", 4, 2, CAPTURE),
        ("llama", 5, 2, OTHERS),
        ("qwen3", 1, None, CAPTURE),
        ("qwen3", 2, 0, OTHERS),
        ("qwen3", 3, 1, CAPTURE),
        ("qwen3", 4, 2, OTHERS),
        ("qwen3", 5, 0, CAPTURE),
    ],
)
def test_acceptance_is_exact(
    family: Family,
    chain: int,
    slot: int | None,
    layers: tuple[int, int, int],
    tmp_path: Path,
) -> None:
    golden = build(tmp_path, family, slot, layers)
    with start(golden, chain, tmp_path / "work") as running:
        check_exact(running, golden, chain)


def test_a_draft_of_every_token_accepts_wherever_it_is_asked(tmp_path: Path) -> None:
    golden = build(tmp_path, kept=VOCAB)
    prompts = golden.prompts(3, start=KEPT)
    with start(golden, 3, tmp_path / "work") as running:
        answers = running.generate(prompts, Sampling(9))
        drafted = running.metrics()
    assert [a.tokens for a in answers] == [golden.chain(p[-1], 9) for p in prompts]
    assert drafted.accepted_at == (6, 6, 6)
