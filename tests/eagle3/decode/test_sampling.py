"""Bias, penalties and filters against transformers' processors and a plain reference, and at every
node of a tree as along its path."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from eagle3.decode.sampling import NOTHING, Prefix, Sampling, adjusted, choices, probabilities
from eagle3.decode.tree import Tree
from eagle3.errors import BadInput

V = 12


def logits(seed: int, rows: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(rows, V, generator=generator, dtype=torch.float64)


def reference(
    logits_V: list[float], sampling: Sampling, prompt: list[int], output: list[int]
) -> list[float]:
    """One row, one token at a time, straight from the definitions."""
    x = list(logits_V)
    for token, bias in sampling.logit_bias.items():
        x[token] += bias
    for token in range(len(x)):
        times = output.count(token)
        if token in prompt or times:
            r = sampling.repetition_penalty
            x[token] = x[token] / r if x[token] > 0 else x[token] * r
        x[token] -= sampling.frequency_penalty * times
        x[token] -= sampling.presence_penalty if times else 0
    x = [value / sampling.temperature for value in x]
    p = [math.exp(value - max(x)) for value in x]
    if sampling.min_p:
        p = [value if value >= sampling.min_p * max(p) else 0 for value in p]
    if sampling.top_k:
        least = sorted(p, reverse=True)[: sampling.top_k][-1]
        p = [value if value >= least else 0 for value in p]
    p = [value / sum(p) for value in p]
    if sampling.top_p:
        kept, mass = set(), 0.0
        for token in sorted(range(len(p)), key=lambda i: -p[i]):
            if mass >= sampling.top_p:
                break
            kept.add(token)
            mass += p[token]
        p = [value if token in kept else 0 for token, value in enumerate(p)]
    return [value / sum(p) for value in p]


tokens = st.lists(st.integers(0, V - 1), max_size=6)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([None, 1, 3, V, V + 5]),
    top_p=st.sampled_from([None, 0.2, 0.61, 0.95, 1.0]),
    min_p=st.sampled_from([None, 0.0, 0.03, 0.4, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 0.7, 1.3]),
    frequency_penalty=st.sampled_from([0.0, -0.4, 0.9]),
    presence_penalty=st.sampled_from([0.0, -1.1, 2.0]),
    logit_bias=st.dictionaries(st.integers(0, V - 1), st.floats(-8, 8), max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), samplings, tokens, tokens)
def test_the_whole_row_is_that_of_the_definitions(
    seed: int, sampling: Sampling, prompt: list[int], output: list[int]
) -> None:
    x = logits(seed)
    prefix = Prefix(prompt)
    prefix.extend(output)
    expected = reference(x[0].tolist(), sampling, prompt, output)
    assert probabilities(x, sampling, prefix)[0].tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("setting", "processor"),
    [
        ({"temperature": 0.7}, TemperatureLogitsWarper(0.7)),
        ({"top_k": 4}, TopKLogitsWarper(4)),
        ({"top_p": 0.83}, TopPLogitsWarper(0.83)),
        ({"min_p": 0.07}, MinPLogitsWarper(0.07)),
        ({"repetition_penalty": 1.4}, RepetitionPenaltyLogitsProcessor(1.4)),
        ({"repetition_penalty": 0.8}, RepetitionPenaltyLogitsProcessor(0.8)),
    ],
)
def test_each_step_is_that_of_transformers(
    setting: dict[str, Any], processor: Any, seed: int
) -> None:
    x, prompt, output = logits(seed), [3, 1, 3], [5, 1]
    prefix = Prefix(prompt)
    prefix.extend(output)
    expected = processor(torch.tensor([prompt + output]), x.clone()).softmax(-1)
    found = probabilities(x, Sampling(**{"temperature": 1.0} | setting), prefix)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_the_steps_tells(seed: int) -> None:
    """Each two neighbours of the order, exchanged, would give another distribution."""
    x = logits(seed)
    prefix = Prefix([0])
    prefix.extend(range(V))
    sampling = Sampling(0.5, 4, 0.8, 0.2, 1.5, 0.3, 0.2, {int(x.argmax()): -2.0})
    bias_first = x[0, x.argmax()] - 2.0
    best = adjusted(x, sampling, prefix)[0, x.argmax()]
    assert best == pytest.approx(
        float(bias_first / 1.5 if bias_first > 0 else bias_first * 1.5) - 0.5
    )
    hot = probabilities(x, Sampling(2.0, top_p=0.6))
    cold_cut = probabilities(x, Sampling(1.0, top_p=0.6)) > 0
    assert int((hot > 0).sum()) > int(cold_cut.sum())  # temperature comes before top-p
    both = probabilities(x, Sampling(1.0, top_k=2, top_p=0.95))
    assert int((both > 0).sum()) <= 2
    assert float(both.sum()) == pytest.approx(1)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    nodes = draw(st.integers(0, 7))
    parents = [draw(st.integers(0, node)) for node in range(nodes)]
    return Tree([draw(st.integers(0, V - 1)) for _ in range(nodes)], parents)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), samplings, tokens, tokens, trees())
def test_a_node_is_treated_as_the_end_of_its_own_path(
    seed: int, sampling: Sampling, prompt: list[int], output: list[int], tree: Tree
) -> None:
    x = logits(seed, len(tree.tokens) + 1)
    before = x.clone()
    prefix = Prefix(prompt)
    prefix.extend(output)
    found, chosen = probabilities(x, sampling, prefix, tree), choices(x, sampling, prefix, tree)
    for node in range(len(x)):
        path, at = [], node
        while at:
            path.append(tree.tokens[at - 1])
            at = tree.parents[at - 1]
        alone = Prefix(prompt)
        alone.extend([*output, *path[::-1]])
        assert torch.equal(found[node], probabilities(x[node : node + 1], sampling, alone)[0])
        assert chosen[node] == choices(x[node : node + 1], sampling, alone)[0]
    assert torch.equal(x, before)
    assert NOTHING.counts == {}


def test_without_bias_or_penalties_greedy_reads_the_raw_logits() -> None:
    x = logits(0, 3).bfloat16()
    assert adjusted(x, Sampling()) is x
    assert choices(x, Sampling()) == x.argmax(-1).tolist()


def test_penalties_and_bias_change_a_greedy_choice() -> None:
    x = torch.tensor([[1.0, 3.0, 2.9]])
    said = Prefix([1])
    assert choices(x, Sampling(repetition_penalty=1.2), said) == [2]
    assert choices(x, Sampling(presence_penalty=0.5), said) == [1]  # the prompt does not count
    said.extend([1])
    assert choices(x, Sampling(presence_penalty=0.5), said) == [2]
    assert choices(x, Sampling(logit_bias={0: 2.5})) == [0]


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -1.0},
        {"temperature": 1e-6},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": 0},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.5},
        {"repetition_penalty": 0.0},
        {"frequency_penalty": 2.1},
        {"presence_penalty": -2.1},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {1: math.inf}},
        {"logit_bias": {1: math.nan}},
    ],
)
def test_bad_sampling_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"{next(iter(bad))} .*: expected"):
        Sampling(**bad)


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.6, 0.9, 0.999, 1 - 1e-14])
@pytest.mark.parametrize("step", [0.0, 0.001, 0.5, 40.0])
def test_the_nucleus_is_that_of_a_sorted_vocabulary(top_p: float, step: float) -> None:
    """Rows of which one is narrow and one is flat, with ties at every place; probabilities that lie
    close together (one bin) and far apart (beyond the last one)."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 500, generator=generator, dtype=torch.float64).mul(2).round()
    logits = step * logits / torch.tensor([[1.0], [2.0], [4.0]])
    for rows in (slice(0, 3), slice(0, 1), slice(2, 3)):
        p = logits[rows].softmax(-1)
        ordered, ids = p.sort(dim=-1, descending=True, stable=True)
        kept = torch.zeros_like(p).scatter(
            -1, ids, ordered * (ordered.cumsum(-1) - ordered < top_p)
        )
        found = probabilities(logits[rows], Sampling(1.0, top_p=top_p))
        assert torch.equal(found > 0, kept > 0)
        torch.testing.assert_close(found, kept / kept.sum(-1, keepdim=True), rtol=1e-12, atol=0)
