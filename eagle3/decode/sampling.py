"""From logits to a distribution or a choice: one definition, for plain and for draft decoding.

In this order, as vLLM has it (each step by itself is that of transformers' processor of its name):
on the raw logits the logit bias, then the penalties (repetition, frequency, presence), for greedy
decoding too; greedy takes the largest. Else temperature, min-p, top-k, top-p, and what is left is
renormalised. The repetition penalty counts prompt and output, the other two the output alone.

Penalties look at the tokens before a place, and these differ from node to node of a tree: a node
sees the sequence so far (`Prefix`, counted once) and the drafted tokens on its path.

Shapes: N rows (the nodes of a tree, root first), V vocabulary, K bins of probability, C tokens of
one bin, U ids that occur in the prefix, E entries, one for each node and each id on its path, or
for each token of a bin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle3.decode.tree import EMPTY, Tree
from eagle3.errors import BadInput

COLDEST = 1e-5
"""A temperature above 0 and below this would overflow; it is greedy in all but name."""

MANTISSA = 52
"""Bits of a float64 after its exponent."""

BIN_BITS, BINS = 5, 2048
"""32 bins for each halving of a probability; the last one takes all beyond 64 halvings."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; temperature 0 is greedy and ignores min-p, top-k and top-p.

    Raises:
        BadInput: a value outside its range.
    """

    temperature: float = 0.0
    top_k: int | None = None
    """Keep the k most likely tokens, and those that tie with the k-th."""
    top_p: float | None = None
    """Keep the fewest most likely tokens whose probability together reaches this."""
    min_p: float | None = None
    """Keep tokens that are at least this share as likely as the likeliest."""
    repetition_penalty: float = 1.0
    """The logit of a token of prompt or output is divided by this, or multiplied where negative."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time that it is in the output."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that is in the output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    """Added to the logits of these token ids; -100 bans a token in all but name."""

    def __post_init__(self) -> None:
        t = self.temperature
        _require(t == 0 or COLDEST <= t < math.inf, "temperature", t, "0 (greedy) or 1e-5 or more")
        k, p, m = self.top_k, self.top_p, self.min_p
        _require(k is None or k >= 1, "top_k", k, "1 or more")
        _require(p is None or 0 < p <= 1, "top_p", p, "more than 0 and at most 1")
        _require(m is None or 0 <= m <= 1, "min_p", m, "0 to 1")
        r = self.repetition_penalty
        _require(0 < r < math.inf, "repetition_penalty", r, "more than 0 (1 is none)")
        for name in ("frequency_penalty", "presence_penalty"):
            value = getattr(self, name)
            _require(-2 <= value <= 2, name, value, "-2 to 2 (0 is none)")
        for token, bias in self.logit_bias.items():
            _require(token >= 0, "logit_bias", f"of token {token}", "an id of 0 or more")
            _require(math.isfinite(bias), "logit_bias", f"{bias} of token {token}", "a number")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        """Whether the tokens so far change the logits."""
        return (
            self.repetition_penalty != 1
            or self.frequency_penalty != 0
            or self.presence_penalty != 0
        )

    @property
    def adjusts(self) -> bool:
        """Whether a greedy choice may differ from the largest raw logit."""
        return self.penalises or bool(self.logit_bias)


def _require(holds: bool, name: str, value: object, expected: str) -> None:
    if not holds:
        raise BadInput(f"{name} {value}: expected {expected}")


class Prefix:
    """The tokens of one sequence so far, counted as they come.

    `counts` holds every id of prompt and output, with the times that it is in the output.
    """

    def __init__(self, prompt_ids: Iterable[int]) -> None:
        self.counts: dict[int, int] = dict.fromkeys(prompt_ids, 0)

    def extend(self, tokens: Iterable[int]) -> None:
        """Tokens that were emitted."""
        for token in tokens:
            self.counts[token] = self.counts.get(token, 0) + 1

    def followed_by(self, tokens: Iterable[int]) -> Prefix:
        """The prefix of a place further on."""
        longer = Prefix(())
        longer.counts = dict(self.counts)
        longer.extend(tokens)
        return longer


NOTHING = Prefix(())


@dataclass(frozen=True, slots=True)
class Distributions:
    """What plain decoding would sample from at each node of a tree, made when it is asked for: of
    a tree only the nodes of one path are."""

    logits_NV: Tensor
    sampling: Sampling
    prefix: Prefix
    tree: Tree

    def __getitem__(self, node: int, /) -> Tensor:
        """Float64 [V], on the CPU."""
        prefix = self.prefix
        if node and self.sampling.penalises:
            prefix = prefix.followed_by(self.tree.path(node))
        return probabilities(self.logits_NV[node : node + 1], self.sampling, prefix)[0].cpu()


def adjusted(
    logits_NV: Tensor, sampling: Sampling, prefix: Prefix = NOTHING, tree: Tree = EMPTY
) -> Tensor:
    """Logits with bias and penalties, float64 [N, V]; the very tensor where there are none.

    Args:
        prefix: prompt and all that was emitted, the root included.
        tree: what was drafted after the root; the rows are its nodes.
    """
    if not sampling.adjusts:
        return logits_NV
    x_NV = logits_NV.to(torch.float64, copy=True)
    device = x_NV.device
    if sampling.logit_bias:
        biased = torch.tensor(list(sampling.logit_bias), device=device)
        x_NV[:, biased] += x_NV.new_tensor(list(sampling.logit_bias.values()))
    if not sampling.penalises:
        return x_NV
    entries_3E = torch.tensor(_on_paths(prefix, tree), dtype=torch.int64).view(-1, 3).T
    rows_E, ids_E, counts_E = entries_3E.to(device)
    drafted_E = x_NV[rows_E, ids_E]
    ids_U = torch.tensor(list(prefix.counts), dtype=torch.int64, device=device)
    counts_U = torch.tensor(list(prefix.counts.values()), dtype=torch.int64, device=device)
    x_NV[:, ids_U] = _penalised(x_NV[:, ids_U], counts_U, sampling)
    x_NV[rows_E, ids_E] = _penalised(drafted_E, counts_E, sampling)
    return x_NV


def _on_paths(prefix: Prefix, tree: Tree) -> list[tuple[int, int, int]]:
    """(node, id, times in the output) for each drafted id on each node's path."""
    paths: list[dict[int, int]] = [{}]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        above = paths[parent]
        before = above.get(token, prefix.counts.get(token, 0))
        paths.append(above | {token: before + 1})
    return [(node, token, n) for node, path in enumerate(paths) for token, n in path.items()]


def _penalised(x: Tensor, counts: Tensor, sampling: Sampling) -> Tensor:
    """Logits of tokens that occur, with the times that each is in the output."""
    r = sampling.repetition_penalty
    x = torch.where(x > 0, x / r, x * r)
    counts = counts.to(x.dtype)  # a number times integers would be float32
    return x - sampling.frequency_penalty * counts - sampling.presence_penalty * counts.sign()


def choices(
    logits_NV: Tensor, sampling: Sampling, prefix: Prefix = NOTHING, tree: Tree = EMPTY
) -> list[int]:
    """The greedy choice at each row: the largest logit after bias and penalties (`adjusted`)."""
    chosen: list[int] = adjusted(logits_NV, sampling, prefix, tree).argmax(-1).tolist()
    return chosen


def probabilities(
    logits_NV: Tensor, sampling: Sampling, prefix: Prefix = NOTHING, tree: Tree = EMPTY
) -> Tensor:
    """The distribution that is sampled from, float64 [N, V]; arguments as of `adjusted`."""
    assert not sampling.is_greedy
    x_NV = adjusted(logits_NV, sampling, prefix, tree)
    x_NV = x_NV.to(torch.float64, copy=x_NV is logits_NV).div_(sampling.temperature)
    if sampling.min_p:
        least = x_NV.amax(-1, keepdim=True) + math.log(sampling.min_p)
        x_NV = x_NV.masked_fill(x_NV < least, -torch.inf)
    if sampling.top_k is not None and sampling.top_k < x_NV.shape[-1]:
        least = x_NV.topk(sampling.top_k).values[..., -1:]
        x_NV = x_NV.masked_fill(x_NV < least, -torch.inf)
    p_NV = x_NV.softmax(-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        p_NV.mul_(_nucleus(p_NV, sampling.top_p))
        p_NV.div_(p_NV.sum(-1, keepdim=True))
    return p_NV


def _nucleus(p_NV: Tensor, share: float) -> Tensor:
    """The fewest likeliest tokens of each row that reach `share`, boolean [N, V]; of equal ones the
    lower id comes first.

    Sorting a whole vocabulary is slow. Here tokens go into bins of about the same probability, from
    the largest on; the nucleus ends within one bin, and only that one is sorted.
    """
    bits_NV = p_NV.view(torch.int64) >> (MANTISSA - BIN_BITS)  # in the order of the numbers
    bin_NV = bits_NV.neg_().sub_(bits_NV.amin(-1, keepdim=True)).clamp_(max=BINS - 1)
    mass_NK = p_NV.new_zeros(len(p_NV), BINS).scatter_add_(-1, bin_NV, p_NV)
    before_NK = mass_NK.cumsum(-1) - mass_NK
    last_N1 = (before_NK < share).sum(-1, keepdim=True) - 1
    row_E, id_E = (bin_NV == last_N1).nonzero(as_tuple=True)
    counts_N = row_E.bincount(minlength=len(p_NV))
    place_E = torch.arange(len(row_E), device=row_E.device) - (counts_N.cumsum(0) - counts_N)[row_E]
    some_NC = p_NV.new_zeros(len(p_NV), int(counts_N.max()))
    ids_NC = torch.zeros_like(some_NC, dtype=torch.int64)
    some_NC[row_E, place_E], ids_NC[row_E, place_E] = p_NV[row_E, id_E], id_E
    some_NC, order_NC = some_NC.sort(dim=-1, descending=True, stable=True)
    reached_NC = before_NK.gather(-1, last_N1) + some_NC.cumsum(-1) - some_NC
    row_E, place_E = ((reached_NC < share) & (some_NC > 0)).nonzero(as_tuple=True)
    kept_NV = bin_NV < last_N1
    kept_NV[row_E, ids_NC.gather(-1, order_NC)[row_E, place_E]] = True
    return kept_NV


def draw(p_V: Tensor, generator: torch.Generator) -> int:
    """One token from a distribution, by one number of the generator."""
    below_V = p_V.cumsum(-1)
    u = torch.rand((), generator=generator, dtype=torch.float64).to(p_V.device)
    token = int(torch.searchsorted(below_V, u * below_V[-1], right=True))
    return min(token, len(p_V) - 1)
