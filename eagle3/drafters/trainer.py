"""One trainer for every method that learns: the same data, order, optimiser and budget for all.

A budget is seconds of training or tokens, whichever is spent first, and the learning rate follows
the share of it that is spent: a method with a cheaper step takes more of them. Time of the held-out
evaluations does not count.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from eagle3.config import TrainConfig
from eagle3.data.features import Sample, SampleRef
from eagle3.data.source import FeatureSource
from eagle3.drafters import saved
from eagle3.errors import BadInput, Stopped
from eagle3.train.batch import Batch, pack, plan_batches
from eagle3.train.checkpoint import (
    BEST,
    STATE,
    latest_checkpoint,
    load_optimizer,
    new_checkpoint,
    save_optimizer,
)
from eagle3.train.precision import Precision, choose_precision, computing_in
from eagle3.train.samples import Samples
from eagle3.train.schedule import learning_rate
from eagle3.train.sharded import moments

WEIGHTS = "model.safetensors"

GRAIN = 10_000
"""The schedule counts steps; a budget has this many."""


class Method(Protocol):
    """A method that learns from the target's features."""

    @property
    def name(self) -> str: ...

    @property
    def module(self) -> nn.Module:
        """What is trained: its parameters that require gradients."""
        ...

    @property
    def steps(self) -> int:
        """Tokens after a root that its loss looks at (`Batch.supervised_ST`)."""
        ...

    @property
    def reads_hidden(self) -> bool:
        """Whether it needs `Batch.hidden_TH`, beside the labels."""
        ...

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """The scalar to go down, and what to report of it."""
        ...

    def acceptance(self, samples: Sequence[Sample]) -> float:
        """tau of greedy chains along held-out answers."""
        ...


@dataclass(frozen=True)
class Budget:
    """What a training may cost."""

    seconds: float | None = None
    tokens: int | None = None
    """Prompt and answer tokens, each time they are seen."""

    def __post_init__(self) -> None:
        if not any(self._limits()) or any(x is not None and x <= 0 for x in self._limits()):
            raise ValueError(f"{self}: expected seconds or tokens, or both, above 0")

    def _limits(self) -> tuple[float | None, int | None]:
        return self.seconds, self.tokens

    def share(self, seconds: float, tokens: int) -> float:
        """How much of it is spent; 1 and more: all."""
        spent = zip((seconds, tokens), self._limits(), strict=True)
        return max(used / limit for used, limit in spent if limit is not None)


@dataclass
class Fitted:
    """What a training cost, and what came of it."""

    method: str
    precision: Precision
    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    skipped: int = 0
    """Steps left out for a loss or gradient that was no number."""
    tau: float = 0.0
    """Of the weights that were kept: the best on held-out answers."""
    history: list[dict[str, float]] = field(default_factory=list)
    """Seconds, tokens, steps and tau at each evaluation."""


Report = Callable[[float, Mapping[str, float]], None]
"""Given the share of the budget that is spent, and metrics."""


def fit(
    method: Method,
    source: FeatureSource,
    samples: Samples,
    config: TrainConfig,
    budget: Budget,
    seed: int = 0,
    evaluations: int = 4,
    report: Report | None = None,
    work: Path | None = None,
) -> Fitted:
    """Train a method in place and leave it with the weights of its best evaluation.

    Of `config` the optimiser, schedule, clipping, batches and precision count; an optimiser step
    is one forward.

    Args:
        report: may raise `Stopped`.
        work: keeps a checkpoint of each evaluation, and of the step that was stopped at; a training
            with the same arguments goes on from the newest one, to the same weights where the
            budget is one of tokens.

    Raises:
        BadInput: the features lack what the method reads, or too many steps gave no number.
    """
    return _Fit(method, source, samples, config, budget, evaluations, report, work).run(seed)


class _Fit:
    def __init__(
        self,
        method: Method,
        source: FeatureSource,
        samples: Samples,
        config: TrainConfig,
        budget: Budget,
        evaluations: int,
        report: Report | None,
        work: Path | None,
    ) -> None:
        self.method, self.source, self.samples = method, source, samples
        self.config = config.model_copy(update={"warmup_steps": None})
        self.budget, self.report, self.work = budget, report, work
        self.trained = [p for p in method.module.parameters() if p.requires_grad]
        self.device, self.dtype = self.trained[0].device, self.trained[0].dtype
        self.marks = [(n + 1) / evaluations for n in range(evaluations)]
        self.optimizer = torch.optim.AdamW(
            self.trained, lr=config.learning_rate, betas=config.betas,
            weight_decay=config.weight_decay,
        )  # fmt: skip
        self.out = Fitted(method.name, choose_precision(config.precision, self.device))
        self.best: dict[str, Tensor] = {}

    def run(self, seed: int) -> Fitted:
        heldout = [self.source.load(ref) for ref in self.samples.heldout]
        _check(self.method, heldout)
        self._go_on()
        order = _forever(self.samples.train, self.config, seed)
        clock = time.monotonic()
        for loaded in self.source.batches(itertools.islice(order, self._seen, None)):
            metrics = self._step([sample.first(self.config.max_length) for sample in loaded])
            self.out.seconds += time.monotonic() - clock
            share = self.budget.share(self.out.seconds, self.out.tokens)
            if share >= self.marks[0]:
                metrics |= self._evaluate(heldout)
                self.marks = [mark for mark in self.marks if mark > share]
                self._save()
            self._report(share, metrics)
            if share >= 1:
                break
            clock = time.monotonic()
        self.method.module.load_state_dict(self.best, strict=False)
        self.method.module.eval()
        return self.out

    @property
    def _seen(self) -> int:
        """Batches."""
        return self.out.steps + self.out.skipped

    def _report(self, share: float, metrics: Mapping[str, float]) -> None:
        if self.report is None:
            return
        try:
            self.report(min(share, 1.0), metrics)
        except Stopped:
            self._save()
            raise

    def _save(self) -> None:
        if self.work is None:
            return
        with new_checkpoint(self.work, self._seen) as folder:
            saved.save(folder / WEIGHTS, self.method.module)
            if self.best:
                save_file({name: p.cpu() for name, p in self.best.items()}, folder / BEST)
            save_optimizer(folder, moments(self.optimizer))
            (folder / STATE).write_text(json.dumps(asdict(self.out)))

    def _go_on(self) -> None:
        """From the newest checkpoint, where there is one."""
        folder = None if self.work is None else latest_checkpoint(self.work)
        if folder is None:
            return
        saved.load(folder / WEIGHTS, self.method.module)
        if (folder / BEST).is_file():
            self.best = load_file(folder / BEST, str(self.device))
        load_optimizer(folder, self.optimizer)
        self.out = Fitted(**json.loads((folder / STATE).read_text()))
        share = self.budget.share(self.out.seconds, self.out.tokens)
        self.marks = [mark for mark in self.marks if mark > share]

    def _step(self, samples: list[Sample]) -> dict[str, float]:
        share = self.budget.share(self.out.seconds, self.out.tokens)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, int(share * GRAIN), GRAIN)
        self.out.tokens += sum(len(sample.input_ids) for sample in samples)
        batch = pack(samples, self.method.steps, self.dtype, self.device)
        self.method.module.train()
        self.optimizer.zero_grad(set_to_none=True)
        with computing_in(self.out.precision, self.device):
            loss, metrics = self.method.loss(batch)
        torch.autograd.backward(loss)
        norm = float(torch.nn.utils.clip_grad_norm_(self.trained, self.config.grad_clip))
        if not math.isfinite(float(loss.detach()) + norm):
            return self._skip([sample.id for sample in samples])
        self.optimizer.step()
        self.out.steps += 1
        return metrics

    def _skip(self, ids: list[str]) -> dict[str, float]:
        self.out.skipped += 1
        if self.out.skipped > self.config.max_skipped:
            raise BadInput(
                f"{self.method.name}: loss or gradient was NaN or infinite in {self.out.skipped} "
                f"steps, the last with samples {', '.join(ids)}",
                "lower train.learning_rate, or extract the features again",
            )
        return {"train/skipped": float(self.out.skipped)}

    def _evaluate(self, heldout: list[Sample]) -> dict[str, float]:
        module, out = self.method.module.eval(), self.out
        with torch.inference_mode():
            tau = self.method.acceptance(heldout)
        if not self.best or tau > out.tau:
            out.tau = tau
            trained = ((name, p) for name, p in module.named_parameters() if p.requires_grad)
            self.best = {name: p.detach().clone() for name, p in trained}
        cost = {"seconds": out.seconds, "tokens": float(out.tokens), "steps": float(out.steps)}
        out.history.append({**cost, "tau": tau})
        return {"eval/acceptance_length": tau}


def _forever(
    refs: Sequence[SampleRef], config: TrainConfig, seed: int
) -> Iterator[list[SampleRef]]:
    """Batches of one epoch after the other."""
    for epoch in itertools.count():
        yield from plan_batches(refs, config.batch_tokens, config.max_length, 1.0, seed + epoch)


def _check(method: Method, samples: Sequence[Sample]) -> None:
    if method.reads_hidden and any(sample.hidden.shape[1] == 0 for sample in samples):
        raise BadInput(
            f"{method.name} learns from the target's final hidden states, and these features keep "
            "the largest probabilities in their place",
            "extract again with extract.top_k empty",
        )
