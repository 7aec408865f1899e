"""What a draft is measured on: the target's own greedy answers, with its states at many layers.

The target runs once. Each reading of the draft is then measured on what was kept: chains are
drafted from every row of the answers and walked along them (`eagle3.train.evaluate`).

Shapes: L tokens of a prompt and its answer, H hidden size, T packed rows, R rows where drafting can
start, D depth of a chain, P prompts, S resamples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle3.data.features import Sample
from eagle3.decode.engine import Engine
from eagle3.decode.request import Request
from eagle3.diagnose.reading import Reading
from eagle3.draft import Draft
from eagle3.drafters.plain import Plain
from eagle3.errors import BadInput
from eagle3.target import Target
from eagle3.train.batch import Batch, pack
from eagle3.train.evaluate import Acceptance, walk
from eagle3.train.ttt import unroll

SLOTS = 8
ROWS = 1024
"""Tokens that the draft reads at once: its logits for all of them are in memory."""
RESAMPLES = 1000


@dataclass(frozen=True)
class Answer:
    """A prompt with the target's greedy answer, and the residual stream entering some layers."""

    ids: list[int]
    start: int
    """Where the answer begins."""
    states: dict[int, Tensor]
    """By HF `hidden_states` index, [L, H]; the last index is the last layer's output, un-normed."""

    def sample(self, layers: Sequence[int]) -> Sample:
        """As training reads it, features of these layers side by side."""
        features = torch.cat([self.states[k] for k in layers], -1)
        empty = features[:, :0]
        unknown = torch.full((len(self.ids),), -1)
        spans = [(self.start, len(self.ids))]
        ids = torch.tensor(self.ids)
        return Sample("", "heldout", ids, features, empty, unknown, unknown.float(), spans)


@dataclass(frozen=True)
class Measured:
    """Acceptance of one reading, prompt by prompt."""

    by_prompt: list[Acceptance]

    @property
    def total(self) -> Acceptance:
        depth = max(a.depth for a in self.by_prompt)
        return Acceptance(
            depth,
            sum(a.rounds for a in self.by_prompt),
            sum(a.emitted for a in self.by_prompt),
            [sum(a.reached[n] for a in self.by_prompt) for n in range(depth)],
            [sum(a.accepted[n] for a in self.by_prompt) for n in range(depth)],
        )

    @property
    def tau(self) -> float:
        return self.total.length

    def gain_over(self, before: Measured) -> tuple[float, float]:
        """The gain in tau: 95% percentile bootstrap over prompts; paired where these are as many
        as `before` has, as they then are the same ones."""
        generator = torch.Generator().manual_seed(0)
        ours, theirs = (_table(m.by_prompt) for m in (self, before))
        drawn = torch.randint(len(ours), (RESAMPLES, len(ours)), generator=generator)
        other = drawn
        if len(ours) != len(theirs):
            other = torch.randint(len(theirs), (RESAMPLES, len(theirs)), generator=generator)
        taus = [table[rows].sum(1) for table, rows in ((ours, drawn), (theirs, other))]
        gains_S = taus[0][:, 1] / taus[0][:, 0] - taus[1][:, 1] / taus[1][:, 0]
        bounds = gains_S.nanquantile(torch.tensor([0.025, 0.975], dtype=torch.float64))
        low, high = bounds.tolist()
        return low, high


@dataclass(frozen=True)
class Answers:
    """A target's answers to a set of prompts."""

    found: list[Answer]
    embed_VH: Tensor
    """That target's embedding."""
    depth: int

    @property
    def kept(self) -> frozenset[int]:
        """Layers whose states there are."""
        return frozenset(self.found[0].states)

    @torch.inference_mode()
    def measure(self, reading: Reading) -> Measured:
        """Acceptance of chains of `depth` greedy guesses."""
        draft = reading.draft(self.embed_VH)
        layers = reading.config.capture_layers
        totals: list[Acceptance] = []
        for part in _parts(self.found):
            samples = [answer.sample(layers) for answer in part]
            batch = pack(samples, self.depth, draft.fc.weight.dtype, self.embed_VH.device)
            rows_R = batch.supervised_ST[0].nonzero()[:, 0]
            agree_R = _agreeing(draft, batch, rows_R, self.depth, reading)
            matched = dict(zip(rows_R.tolist(), agree_R.tolist(), strict=True))
            for answer, first in zip(part, batch.starts, strict=True):
                total = Acceptance(self.depth)
                walk(total, matched, [(first + answer.start, first + len(answer.ids))])
                totals.append(total)
        return Measured(totals)

    def covered(self, draft: Draft) -> float:
        """The share of answer tokens that a draft's vocabulary holds."""
        ids = torch.tensor([i for a in self.found for i in a.ids[a.start :]])
        return float(draft.t2d.cpu()[ids].float().mean())


def ask(
    target: Target,
    prompts: Sequence[list[int]],
    max_new_tokens: int,
    layers: Iterable[int],
    depth: int,
) -> Answers:
    """Have the target answer greedily, and keep what enters these layers.

    Raises:
        BadInput: no answer is long enough to draft in.
    """
    engine = Engine(target, Plain(), min(SLOTS, len(prompts)))
    room = [min(max_new_tokens, target.context - len(ids)) for ids in prompts]
    requests = [
        Request(ids, most, stop_ids=target.eos_ids())
        for ids, most in zip(prompts, room, strict=True)
    ]
    written = [one.tokens for one in engine.generate(requests)]
    found = [
        Answer([*ids, *tokens], len(ids), _states(target, [*ids, *tokens], set(layers)))
        for ids, tokens in zip(prompts, written, strict=True)
        if len(tokens) > 1
    ]
    if not found:
        raise BadInput(
            "the target answers each prompt with one token, so there is nothing to draft",
            "give other prompts: --prompts FILE",
        )
    return Answers(found, target.embed.weight.detach(), depth)


def _states(target: Target, ids: list[int], layers: set[int]) -> dict[int, Tensor]:
    with _listening(target, layers) as heard:
        target.forward(torch.tensor([ids], device=target.device), target.new_cache(len(ids)))
    return heard


@contextmanager
def _listening(target: Target, layers: set[int]) -> Iterator[dict[int, Tensor]]:
    """Collects what enters these layers; behind the last one, what leaves it."""
    heard: dict[int, Tensor] = {}

    def before(index: int) -> Any:
        def hear(_: Any, args: tuple[Tensor, ...]) -> None:
            heard[index] = args[0][0]

        return hear

    def after(_: Any, args: Any, out: Any) -> None:
        heard[target.num_layers] = (out if isinstance(out, Tensor) else out[0])[0]

    hooks = [
        target.layers[k].register_forward_pre_hook(before(k))
        for k in layers
        if k < target.num_layers
    ]
    if target.num_layers in layers:
        hooks.append(target.layers[-1].register_forward_hook(after))
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


def _agreeing(draft: Draft, batch: Batch, rows_R: Tensor, depth: int, reading: Reading) -> Tensor:
    """For each row, how many tokens of its own greedy chain agree with the answer, in order, [R].

    Beyond the length that the draft's config allows nothing is drafted.
    """
    last = len(batch.ids_T) - 1
    agree_DR: list[Tensor] = []

    def own(k: int, out_RH: Tensor) -> Tensor:
        data_R = batch.ids_T[(rows_R + 1 + k).clamp(max=last)]
        choice_R = draft.target_ids(draft.logits(out_RH).argmax(-1))
        if reading.knows:
            choice_R = choice_R.where(draft.t2d[data_R], data_R)
        inside_R = batch.positions_T[rows_R] + k <= reading.config.max_position_embeddings
        agree_DR.append((choice_R == data_R) & batch.supervised_ST[k - 1][rows_R] & inside_R)
        return choice_R.clamp(0, len(draft.t2d) - 1)

    outs = list(unroll(draft, batch, rows_R, depth, own))
    own(depth, outs[-1])
    return torch.stack(agree_DR).int().cumprod(0).sum(0)


def _parts(answers: Sequence[Answer]) -> Iterator[list[Answer]]:
    """Answers that are read together."""
    part: list[Answer] = []
    for answer in answers:
        if part and sum(len(a.ids) for a in part) + len(answer.ids) > ROWS:
            yield part
            part = []
        part.append(answer)
    yield part


def _table(found: Sequence[Acceptance]) -> Tensor:
    """Rounds and emitted tokens of each prompt, float64 [P, 2]."""
    return torch.tensor([[a.rounds, a.emitted] for a in found], dtype=torch.float64)
