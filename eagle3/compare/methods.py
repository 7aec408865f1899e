"""The methods that can be compared: how each is trained, kept, and made a drafter.

Every training sees the same samples in the same order, with the recipe's optimiser and batches, for
the same budget (`drafters.trainer`). What is trained lies in `<method>/<key>/`, whose key is a hash
of all that decides it; a training that is there is not done again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eagle3 import vocab
from eagle3.compare.result import Training
from eagle3.data.features import Sample
from eagle3.data.source import FeatureSource
from eagle3.decode.drafter import Drafter
from eagle3.decode.linear import speed_up
from eagle3.decode.tree import Shape
from eagle3.decode.verify import Typical
from eagle3.draft import Draft, DraftConfig
from eagle3.drafters import saved
from eagle3.drafters.eagle import Eagle, EagleDrafter
from eagle3.drafters.eagle2 import Eagle2
from eagle3.drafters.eagle3 import Eagle3
from eagle3.drafters.guesses import Guesser, rank_accuracy
from eagle3.drafters.hass import Hass
from eagle3.drafters.heads import DraftHeads, HeadDrafter
from eagle3.drafters.hydra import Hydra
from eagle3.drafters.lookahead import Lookahead
from eagle3.drafters.medusa import Medusa
from eagle3.drafters.pld import PromptLookup
from eagle3.drafters.small import SmallModel
from eagle3.drafters.sps import Speculative
from eagle3.drafters.static import Layout, best_layout
from eagle3.drafters.trainer import Budget, Method, fit
from eagle3.errors import BadInput
from eagle3.run import Context, read_manifest, sha256_file, sha256_json, write_json
from eagle3.target import Target
from eagle3.train.build import new_draft
from eagle3.train.evaluate import chain_acceptance
from eagle3.train.labels import Teacher
from eagle3.train.objective import Supervised, score, weights
from eagle3.train.samples import Samples

FORMAT = 2
"""Raised when a training changes meaning, so that old ones are not reused."""

RANKS = 4
"""Guesses of a head that may stand in a tree."""


@dataclass(frozen=True)
class Materials:
    """What methods are made from."""

    ctx: Context
    target: Target
    source: FeatureSource
    samples: Samples
    shape: Shape
    """Of trees that are grown; others keep as many nodes, and chains are as deep."""
    folder: Path

    @cached_property
    def kept_D(self) -> Tensor:
        """The draft vocabulary of all that have one."""
        return vocab.kept_ids(self.new_draft().d2t)

    def new_draft(self) -> Draft:
        return new_draft(self.ctx, self.target, self.source, self.samples.train)

    @cached_property
    def heldout(self) -> list[Sample]:
        return [self.source.load(ref) for ref in self.samples.heldout]


class Eagle3Learner:
    """An EAGLE-3 draft under the common trainer: the loss of the stage `train`."""

    name = "eagle3"
    reads_hidden = False

    def __init__(self, materials: Materials) -> None:
        self.config = materials.ctx.config.recipe.train
        self.module = materials.new_draft()
        self.depth = materials.shape.depth
        target = materials.target
        self.teacher = Teacher.of(target.head_weight().detach(), self.module, target.softcap)

    @property
    def steps(self) -> int:
        return self.config.ttt_steps

    def loss(self, batch: Any) -> tuple[Tensor, dict[str, float]]:
        config = self.config
        part = Supervised.of(self.module, batch)
        share = weights([part], config.ttt_steps, config.step_decay, config.loss_per)[0]
        found = score(self.module, self.teacher, batch, part, share, config.loss)
        return found.loss, {"train/loss": float(found.loss.detach())}

    def acceptance(self, samples: Any) -> float:
        return chain_acceptance(self.module, samples, self.depth).length


@dataclass(frozen=True)
class Entry:
    """How a method is made."""

    learner: Callable[[Materials], Method] | None
    """None where there is nothing to train."""
    drafter: Callable[[Materials, Any], Drafter]
    """From what was trained."""
    trained_as: str | None = None
    """Another method whose training this is."""


def _heads(cls: type[DraftHeads], typical: Typical | None = None) -> Entry:
    def learner(m: Materials) -> Method:
        head_VH = m.target.head_weight().detach()
        heads = cls(m.target.embed.weight.detach(), m.kept_D, head_VH, m.shape.depth)
        return heads.to(m.target.device)

    def drafter(m: Materials, heads: Any) -> Drafter:
        return HeadDrafter(heads, _layout(m, heads), typical)

    return Entry(learner, drafter, trained_as=cls.name)


def _eagle(cls: type[Eagle]) -> Callable[[Materials], Method]:
    def learner(m: Materials) -> Method:
        target, kept_D = m.target, m.kept_D
        sizes = DraftConfig.for_target(target.config, m.source.capture_layers, len(kept_D))
        embed_VH, head_VH = target.embed.weight.detach(), target.head_weight().detach()
        draft = cls(sizes, embed_VH, kept_D, head_VH, target.softcap, m.shape.depth)
        return draft.to(target.device)

    return learner


def _layout(m: Materials, guesser: Guesser) -> Layout:
    """The static tree whose nodes are most often right on held-out answers."""
    accuracy_KI = rank_accuracy(guesser, m.heldout, m.shape.depth, RANKS)
    return best_layout(accuracy_KI, m.shape.kept)


METHODS: dict[str, Entry] = {
    "pld": Entry(None, lambda m, _: PromptLookup()),
    "lookahead": Entry(None, lambda m, _: Lookahead(window=5, ngram=3, guesses=5)),
    "sps": Entry(
        lambda m: SmallModel(m.target, depth=m.shape.depth),
        lambda m, small: Speculative.of(small.module, m.target.vocab_size, m.shape.depth),
    ),
    "medusa": _heads(Medusa),
    "medusa_typical": _heads(Medusa, Typical()),
    "hydra": _heads(Hydra),
    "eagle": Entry(_eagle(Eagle), lambda m, draft: EagleDrafter(draft, _layout(m, draft))),
    "eagle2": Entry(_eagle(Eagle), lambda m, draft: Eagle2(draft, m.shape), trained_as="eagle"),
    "hass": Entry(_eagle(Hass), lambda m, draft: Eagle2(draft, m.shape)),
    "eagle3": Entry(Eagle3Learner, lambda m, learner: Eagle3(learner.module, m.shape)),
}
"""By name, in the order of the papers' tables."""

LOSSY = frozenset({"medusa_typical"})
"""What they say is not what the target says; compared where they are named."""


def named(text: str) -> list[str]:
    """The methods of a comma-separated list; `all` that are lossless.

    Raises:
        BadInput: an unknown name.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return [name for name in METHODS if name not in LOSSY]
    unknown = [name for name in names if name not in METHODS]
    if unknown or not names:
        raise BadInput(
            f"--methods {text}: unknown {', '.join(unknown) or 'name'}",
            f"expected all, or some of {', '.join(METHODS)}",
        )
    return list(dict.fromkeys(names))


@dataclass(frozen=True)
class Made:
    """A method that is ready to decode."""

    drafter: Drafter
    settings: dict[str, Any]
    training: Training | None


def make(name: str, materials: Materials, budget: Budget) -> Made:
    """Train a method, or find it trained, and make its drafter.

    Raises:
        Stopped: TERM or INT came; the training goes on from there the next time.
    """
    entry = METHODS[name]
    if entry.learner is None:
        drafter = entry.drafter(materials, None)
        return Made(drafter, _settings(drafter), None)
    learner, training = _trained(entry.trained_as or name, entry.learner, materials, budget)
    learner.module.eval().requires_grad_(False)
    speed_up(learner.module)
    drafter = entry.drafter(materials, learner)
    return Made(drafter, _settings(drafter), training)


def _trained(
    name: str, new: Callable[[Materials], Method], m: Materials, budget: Budget
) -> tuple[Method, Training]:
    ctx, seed = m.ctx, m.ctx.config.recipe.seed
    train = ctx.config.recipe.train
    key = {
        "format": FORMAT,
        "method": name,
        "budget": asdict(budget),
        "seed": seed,
        "train": train.model_dump(mode="json"),
        "shape": asdict(m.shape),
        "inputs": {
            s: read_manifest(ctx.inputs[s])["outputs_digest"] for s in ("resolve", "extract")
        },
    }
    folder = m.folder / name / sha256_json(key)[:16]
    torch.manual_seed(seed)
    learner = new(m)
    weights, facts = folder / "model.safetensors", folder / "training.json"
    if facts.is_file():
        saved.load(weights, learner.module)
        ctx.progress.info(f"{name}: trained before, in {folder}")
        known = Training.model_validate_json(facts.read_text())
        return learner, known.model_copy(update={"cached": True})

    def report(share: float, metrics: Mapping[str, float]) -> None:
        ctx.check_stop("the trainings are kept")
        ctx.progress.progress(round(100 * share, 1), 100, "%", f"training {name}")

    parameters = _parameters(learner.module)
    folder.mkdir(parents=True, exist_ok=True)
    work = folder / "work"
    fitted = fit(learner, m.source, m.samples, train, budget, seed, report=report, work=work)
    write_json(folder / "config.json", key)
    saved.save(weights, learner.module)
    training = Training(
        parameters=parameters,
        seconds=fitted.seconds,
        tokens=fitted.tokens,
        steps=fitted.steps,
        tau=fitted.tau,
        precision=fitted.precision,
        sha256=sha256_file(weights),
        cached=False,
    )
    write_json(facts, training.model_dump(mode="json"))  # last: it says that all is there
    shutil.rmtree(work)
    ctx.progress.info(
        f"{name}: {parameters:,} parameters trained for {fitted.seconds:.0f} s on "
        f"{fitted.tokens:,} tokens in {fitted.steps:,} steps; held-out tau {fitted.tau:.2f}"
    )
    return learner, training


def _parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def _settings(drafter: Drafter) -> dict[str, Any]:
    """What of a drafter is a setting, and the nodes it may draft."""
    fields = {
        key: asdict(value) if isinstance(value, Shape | Layout | Typical) else value
        for key, value in vars(drafter).items()
        if isinstance(value, bool | int | float | str | Shape | Layout | Typical)
    }
    return {**fields, "most_nodes": drafter.most_nodes, "lossless": drafter.lossless}
