"""Held-out acceptance, by drafting real chains along the target's own greedy answers.

A held-out answer is what the target itself decodes greedily, so a round of greedy speculation
accepts exactly the drafted tokens that agree with it: walking along the answer gives the acceptance
length that the decoding engine will measure, without running the target again.

Shapes: R rows where drafting can start, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eagle3 import vocab
from eagle3.bench.metrics import acceptance_length, acceptance_rates
from eagle3.config import TrainConfig
from eagle3.data.coverage import mass_inside
from eagle3.data.features import Sample
from eagle3.draft import Draft
from eagle3.train.batch import Batch, pack
from eagle3.train.labels import Teacher
from eagle3.train.loss import Loss
from eagle3.train.objective import Per, Supervised, score, weights
from eagle3.train.ttt import unroll


@dataclass
class Acceptance:
    """Counts of simulated greedy rounds at one chain depth."""

    depth: int
    rounds: int = 0
    emitted: int = 0
    reached: list[int] = field(default_factory=list)
    """Rounds in which position n was drafted and all earlier ones were accepted."""
    accepted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reached = self.reached or [0] * self.depth
        self.accepted = self.accepted or [0] * self.depth

    @property
    def length(self) -> float:
        return acceptance_length(self.emitted, self.rounds)

    @property
    def by_position(self) -> list[float]:
        return acceptance_rates(self.accepted, self.reached)


@dataclass(frozen=True)
class Evaluation:
    """What held-out answers say of a draft."""

    rounds: Acceptance
    """Of the benchmark's depth: these decide which draft is kept."""
    deep: Acceptance
    """Of rounds as deep as training unrolls."""
    loss: float

    @classmethod
    def of(
        cls,
        draft: Draft,
        teacher: Teacher,
        samples: Sequence[Sample],
        config: TrainConfig,
        depth: int,
    ) -> Evaluation:
        rounds, deep = acceptances(draft, samples, (depth, config.ttt_steps))
        loss = held_out_loss(
            draft,
            teacher,
            [sample.first(config.max_length) for sample in samples],
            config.ttt_steps,
            config.step_decay,
            config.loss,
            config.loss_per,
        )
        return cls(rounds, deep, loss)

    def metrics(self) -> dict[str, float]:
        rates = {f"eval/acceptance_{n}": rate for n, rate in enumerate(self.rounds.by_position)}
        alphas = {f"eval/n_alpha_{n}": rate for n, rate in enumerate(self.deep.by_position)}
        length = self.rounds.length
        return {"eval/acceptance_length": length, "eval/loss": self.loss, **rates, **alphas}

    def record(self, step: int) -> dict[str, Any]:
        """What is kept of the best one."""
        return {
            "step": step,
            "acceptance_length": self.rounds.length,
            "acceptance_by_position": self.rounds.by_position,
            "n_alpha": self.deep.by_position,
        }


def chain_acceptance(draft: Draft, samples: Iterable[Sample], depth: int) -> Acceptance:
    """Draft greedy chains from every row of held-out answers and walk along each answer."""
    return acceptances(draft, samples, (depth,))[0]


@torch.inference_mode()
def acceptances(draft: Draft, samples: Iterable[Sample], depths: Sequence[int]) -> list[Acceptance]:
    """The same for rounds of several depths; a chain is drafted once, as deep as the deepest."""
    totals, deepest = [Acceptance(depth) for depth in depths], max(depths)
    for sample in samples:
        batch = pack([sample], deepest, draft.fc.weight.dtype, draft.fc.weight.device)
        rows_R = batch.supervised_ST[0].nonzero()[:, 0]
        if len(rows_R) == 0:
            continue
        matched = dict(zip(rows_R.tolist(), agreeing(draft, batch, rows_R, deepest), strict=True))
        for total in totals:
            walk(total, matched, sample.spans)
    return totals


@torch.no_grad()
def held_out_loss(
    draft: Draft,
    teacher: Teacher,
    samples: Iterable[Sample],
    steps: int,
    decay: float,
    kind: Loss = "soft_ce",
    per: Per = "token",
) -> float:
    """The training loss of held-out samples, as if all of them were one optimiser step."""
    batches = [
        batch
        for sample in samples
        for batch in [pack([sample], steps, draft.fc.weight.dtype, draft.fc.weight.device)]
        if bool(batch.supervised_ST[0].any())
    ]
    parts = [Supervised.of(draft, batch) for batch in batches]
    shares = weights(parts, steps, decay, per)
    return sum(
        float(score(draft, teacher, batch, part, share, kind).loss)
        for batch, part, share in zip(batches, parts, shares, strict=True)
    )


def coverage(samples: Iterable[Sample], draft: Draft, head_VH: Tensor, cap: float | None) -> float:
    """The target's mean probability mass inside the draft vocabulary on supervised rows."""
    head_DH = head_VH[vocab.kept_ids(draft.d2t)]
    masses = [mass_inside(sample, draft.t2d, head_DH, cap) for sample in samples]
    return float(sum(mass.sum() for mass in masses)) / max(1, sum(map(len, masses)))


def agreeing(draft: Draft, batch: Batch, rows_R: Tensor, depth: int) -> list[int]:
    """For each row, how many tokens of its own greedy chain agree with the data, in order."""
    last = len(batch.ids_T) - 1
    choices: list[Tensor] = []

    def own(_: int, out_RH: Tensor) -> Tensor:
        choices.append(draft.target_ids(draft.logits(out_RH).argmax(-1)))
        return choices[-1]

    outs = list(unroll(draft, batch, rows_R, depth, own))
    own(depth, outs[-1])
    agree = torch.ones_like(rows_R)
    count = torch.zeros_like(rows_R)
    for k, choice_R in enumerate(choices):
        data_R = batch.ids_T[(rows_R + 2 + k).clamp(max=last)]
        agree = agree * ((choice_R == data_R) & batch.supervised_ST[k][rows_R])
        count += agree
    return count.tolist()


def walk(total: Acceptance, matched: dict[int, int], spans: Iterable[tuple[int, int]]) -> None:
    """Count the rounds over a sample's answers, whose first tokens come from the prefill.

    Args:
        matched: for each row where a round can start, how many tokens of its chain agree.
        spans: the answers, each [start, end).
    """
    for start, end in spans:
        row = start - 1
        while row + 2 < end:
            remaining = end - (row + 2)
            accepted = min(matched[row], remaining, total.depth)
            for n in range(min(total.depth, remaining)):
                if n <= accepted:
                    total.reached[n] += 1
                if n < accepted:
                    total.accepted[n] += 1
            emitted = min(accepted + 1, remaining)
            total.rounds += 1
            total.emitted += emitted
            row += emitted
