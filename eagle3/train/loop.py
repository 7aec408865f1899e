"""The `train` stage: from target features to the draft that drafts best on held-out answers."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3.config import TrainConfig
from eagle3.config.sections import HOUSEKEEPING
from eagle3.data.features import Sample, SampleRef
from eagle3.data.local import capture_layers, default_device, target_dir
from eagle3.data.source import open_source
from eagle3.errors import BadInput
from eagle3.export import official
from eagle3.run import Context, read_manifest
from eagle3.target import Target
from eagle3.train.batch import Batch, pack, plan_batches
from eagle3.train.build import new_draft
from eagle3.train.checkpoint import (
    flat,
    latest_checkpoint,
    load_checkpoint,
    restore_best,
    save_best,
    save_checkpoint,
)
from eagle3.train.evaluate import acceptances, coverage, held_out_loss
from eagle3.train.guard import Guard, non_finite
from eagle3.train.labels import Teacher
from eagle3.train.objective import Objective, objective
from eagle3.train.schedule import learning_rate


def train(ctx: Context) -> None:
    """Train on `extract`'s features; writes `draft/` and `history.jsonl`."""
    trainer = Trainer(ctx)
    try:
        trainer.run()
    finally:
        trainer.source.close()


class Trainer:
    """State of one training: what a checkpoint holds, and what can be rebuilt from the inputs."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.config: TrainConfig = ctx.config.recipe.train
        self.depth = ctx.config.recipe.benchmark.depth
        self.work = ctx.out / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        target = Target.load(
            target_dir(ctx), device=default_device(), capture_layers=capture_layers(ctx)
        )
        self.source = open_source(ctx, target)
        self.num_target_layers = target.num_layers
        self.head_VH = target.head_weight().detach()
        self.softcap = getattr(target.config, "final_logit_softcapping", None)
        self._choose_samples()
        self.draft = new_draft(ctx, target, self.source, self.refs)
        self.teacher = Teacher.of(self.head_VH, self.draft, self.softcap)
        self.batches = plan_batches(
            self.refs,
            self.config.batch_tokens,
            self.config.max_length,
            self.config.epochs,
            ctx.config.recipe.seed,
        )
        self.optimizer = torch.optim.AdamW(
            [p for p in self.draft.parameters() if p.requires_grad],
            lr=self.config.learning_rate,
            betas=self.config.betas,
            weight_decay=self.config.weight_decay,
        )
        self.state: dict[str, Any] = {
            "step": 0,
            "seconds": 0.0,
            "tokens": 0,
            "best": None,
            "stale": 0,
            "skipped": [],
            "history": [],
            "recipe": _recipe(ctx),
        }

    def run(self) -> None:
        self._resume()
        total, state, progress = len(self.batches), self.state, self.ctx.progress
        started, before = time.monotonic(), state["seconds"]
        progress.progress(state["step"], total, "step")
        loaded = self.source.batches(self.batches[state["step"] :])
        while state["step"] < total and not self._stale():
            metrics = self._step(loaded)
            state["step"] += 1
            state["seconds"] = before + time.monotonic() - started
            if state["step"] % self.config.eval_every == 0 or state["step"] == total:
                metrics |= self._evaluate()
            if metrics:
                state["history"].append({"step": state["step"], **metrics})
                progress.metrics(state["step"], **metrics)
            progress.progress(state["step"], total, "step")
            if state["step"] < total and not self._stale():
                self._keep(total)
        self._finish()

    def _choose_samples(self) -> None:
        """Training samples that teach, and the held-out ones; those with NaN are left out."""
        limit = self.config.max_length
        found = self.source.samples("train")
        self.refs = [ref for ref in found if teaches(ref, limit)]
        self.left_out = len(found) - len(self.refs)
        refs = sorted(self.source.samples("heldout"), key=lambda ref: ref.id)
        refs = refs[-self.config.eval_samples :]
        faulty = set(non_finite(self.source.load(ref) for ref in refs))
        self.heldout = [ref for ref in refs if ref.id not in faulty]
        if faulty:
            names = ", ".join(sorted(faulty))
            self.ctx.progress.warning(
                f"held-out samples {names} are left out: their features hold NaN or infinity"
            )
        if not self.refs or not self.heldout:
            raise BadInput(
                f"training needs answers of both splits: {len(self.refs)} training samples (and "
                f"{self.left_out} whose answer is of one token, or begins beyond train.max_length "
                f"{limit}) and {len(self.heldout)} held-out ones",
                "add prompts, or raise train.max_length",
            )

    def _resume(self) -> None:
        folder = latest_checkpoint(self.work)
        if folder is not None:
            self.state = load_checkpoint(folder, self.draft, self.optimizer, self.state["recipe"])
            self.ctx.progress.info(f"going on from the checkpoint of step {self.state['step']}")
        restore_best(self.work, folder)
        self.guard = Guard(
            self.ctx.out / "skipped",
            self.config.max_skipped,
            self.state["skipped"],
            self.ctx.progress.warning,
        )

    def _pack(self, samples: list[Sample]) -> Batch:
        cut = [_cut(sample, self.config.max_length) for sample in samples]
        return pack(cut, self.config.ttt_steps, device=self.head_VH.device)

    def _step(self, loaded: Iterator[list[Sample]]) -> dict[str, float]:
        """One optimiser step; its metrics, none when its batch had to be left out."""
        index, samples = self.state["step"], next(loaded)
        self.state["tokens"] += sum(min(len(s.input_ids), self.config.max_length) for s in samples)
        faulty = non_finite(samples)
        if faulty:
            reason = f"features of {', '.join(faulty)} hold NaN or infinity"
            self.guard.skip(index + 1, samples, reason)
            return {}
        rate = learning_rate(self.config, index, len(self.batches))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.draft.train()
        self.optimizer.zero_grad(set_to_none=True)
        result = objective(
            self.draft,
            self.teacher,
            self._pack(samples),
            self.config.step_decay,
            self.config.loss,
            self.config.loss_per,
        )
        loss, norm = float(result.loss.detach()), 0.0
        if math.isfinite(loss):
            norm = self._backward(result.loss)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            reason = f"the loss is {loss} and the gradient's norm is {norm}"
            self.guard.skip(index + 1, samples, reason)
            return {}
        self.optimizer.step()
        return _step_metrics(result) | {"train/grad_norm": norm, "train/learning_rate": rate}

    def _backward(self, loss: Tensor) -> float:
        """Gradients, clipped; returns their norm before that."""
        torch.autograd.backward(loss)
        norm = torch.nn.utils.clip_grad_norm_(self.draft.parameters(), self.config.grad_clip)
        return float(norm)

    def _evaluate(self) -> dict[str, float]:
        self.draft.eval()
        config, samples = self.config, [self.source.load(ref) for ref in self.heldout]
        found, deep = acceptances(self.draft, samples, (self.depth, config.ttt_steps))
        loss = held_out_loss(
            self.draft,
            self.teacher,
            [_cut(sample, config.max_length) for sample in samples],
            config.ttt_steps,
            config.step_decay,
            config.loss,
            config.loss_per,
        )
        best = self.state["best"]
        self.state["stale"] += 1
        if best is None or found.length > best["acceptance_length"]:
            save_best(self.work, self.draft, self.num_target_layers)
            self.state["stale"] = 0
            self.state["best"] = {
                "step": self.state["step"],
                "acceptance_length": found.length,
                "acceptance_by_position": found.by_position,
                "n_alpha": deep.by_position,
            }
        rates = {f"eval/acceptance_{n}": rate for n, rate in enumerate(found.by_position)}
        alphas = {f"eval/n_alpha_{n}": rate for n, rate in enumerate(deep.by_position)}
        return {"eval/acceptance_length": found.length, "eval/loss": loss, **rates, **alphas}

    def _stale(self) -> bool:
        """Whether patience has run out: so many evaluations in a row were no better."""
        patience = self.config.patience
        return patience is not None and self.state["stale"] >= patience

    def _keep(self, total: int) -> None:
        """A checkpoint where one is due, and the end of this process where that was asked for."""
        step, stopping = self.state["step"], self.ctx.stop.is_set()
        if stopping or step % self.config.checkpoint_every == 0:
            folder = save_checkpoint(
                self.work,
                self.draft,
                self.num_target_layers,
                self.optimizer,
                self.state,
                self.config.keep_checkpoints,
            )
            path = folder.relative_to(self.ctx.run).as_posix()
            self.ctx.progress.emit("checkpoint", step=step, path=path)
        if stopping:
            self.ctx.check_stop(f"a checkpoint of step {step} of {total} was kept")

    def _finish(self) -> None:
        best: Path = self.work / "best"
        shutil.copytree(best, self.ctx.out / "draft", dirs_exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in self.state["history"])
        (self.ctx.out / "history.jsonl").write_text(lines)
        draft = official.load(best, self.draft.embed_VH)
        samples = [self.source.load(ref) for ref in self.heldout]
        share = coverage(samples, draft, self.head_VH, self.softcap)
        cut = sum(ref.length > self.config.max_length for ref in self.refs)
        if self._stale():
            self.ctx.progress.info(
                f"stopped at step {self.state['step']} of {len(self.batches)}: no longer accepted "
                f"on held-out answers in {self.state['stale']} evaluations"
            )
        self.ctx.summary |= {
            "steps": self.state["step"],
            "steps_planned": len(self.batches),
            "best_step": self.state["best"]["step"],
            "acceptance_length": round(self.state["best"]["acceptance_length"], 4),
            "acceptance_by_position": [
                round(x, 4) for x in self.state["best"]["acceptance_by_position"]
            ],
            "depth": self.depth,
            "n_alpha": [round(x, 4) for x in self.state["best"]["n_alpha"]],
            "coverage": round(share, 4),
            "parameters": sum(p.numel() for p in draft.parameters()),
            "train_samples": len(self.refs),
            "samples_cut": cut,
            "samples_left_out": self.left_out,
            "batches_skipped": len(self.state["skipped"]),
            "train_tokens": self.state["tokens"],
            "tokens_per_s": round(self.state["tokens"] / max(1e-9, self.state["seconds"]), 1),
        }


def teaches(ref: SampleRef, limit: int) -> bool:
    """Whether a row of its first `limit` is supervised: an answer's first token and its second."""
    return any(min(end, limit) - start >= 2 for start, end in ref.spans)


def _recipe(ctx: Context) -> dict[str, Any]:
    """What decides the result, by dotted name: a checkpoint goes on only where all of it agrees."""
    recipe = ctx.config.recipe
    section = recipe.train.model_dump(mode="json", exclude=set(HOUSEKEEPING))
    return flat({"train": section}) | {
        "seed": recipe.seed,
        "benchmark.depth": recipe.benchmark.depth,
        "features": read_manifest(ctx.inputs["extract"])["outputs_digest"],
    }


def _cut(sample: Sample, limit: int) -> Sample:
    """The first `limit` rows of a sample; spans end there too."""
    if len(sample.input_ids) <= limit:
        return sample
    return Sample(
        id=sample.id,
        split=sample.split,
        input_ids=sample.input_ids[:limit],
        features=sample.features[:limit],
        hidden=sample.hidden[:limit],
        argmax=sample.argmax[:limit],
        lse=sample.lse[:limit],
        spans=[(a, min(b, limit)) for a, b in sample.spans if a < limit],
    )


def _step_metrics(result: Objective) -> dict[str, float]:
    hits = {
        f"train/acc_step_{k}": h / max(1, n)
        for k, (h, n) in enumerate(zip(result.hits, result.rows, strict=True))
    }
    return {"train/loss": float(result.loss.detach()), **hits}
