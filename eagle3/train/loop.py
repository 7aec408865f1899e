"""The `train` stage: from a feature store to the draft that drafts best on held-out answers."""

from __future__ import annotations

import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from eagle3 import vocab
from eagle3.config import TrainConfig
from eagle3.data.features import Sample, SampleRef
from eagle3.data.local import capture_layers, default_device, open_tokenizer, target_dir
from eagle3.data.source import open_source
from eagle3.draft import Draft, DraftConfig
from eagle3.errors import BadInput
from eagle3.export import official
from eagle3.run import Context
from eagle3.target import Target
from eagle3.train.batch import Batch, pack, plan_batches
from eagle3.train.checkpoint import (
    latest_checkpoint,
    load_checkpoint,
    restore_best,
    save_best,
    save_checkpoint,
)
from eagle3.train.evaluate import chain_acceptance, coverage
from eagle3.train.objective import Objective, Teacher, objective
from eagle3.train.start import start_from_target


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
        limit = self.config.max_length
        self.refs = [ref for ref in self.source.samples("train") if teaches(ref, limit)]
        self.left_out = len(self.source.samples("train")) - len(self.refs)
        heldout = sorted(self.source.samples("heldout"), key=lambda ref: ref.id)
        self.heldout = heldout[-self.config.eval_samples :]
        if not self.refs or not self.heldout:
            raise BadInput(
                f"training needs answers of both splits: {len(self.refs)} training samples (and "
                f"{self.left_out} whose answer is of one token, or begins beyond train.max_length "
                f"{limit}) and {len(self.heldout)} held-out ones",
                "add prompts, or raise train.max_length",
            )
        self.draft = self._new_draft(target)
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
            "history": [],
        }

    def run(self) -> None:
        self._resume()
        total = len(self.batches)
        progress = self.ctx.progress
        started, before = time.monotonic(), self.state["seconds"]
        progress.progress(self.state["step"], total, "step")
        loaded = self.source.batches(self.batches[self.state["step"] :])
        while self.state["step"] < total:
            index = self.state["step"]
            batch = self._pack(next(loaded))
            result = self._step(batch, index)
            self.state["step"] = step = index + 1
            self.state["tokens"] += len(batch.ids_T)
            self.state["seconds"] = before + time.monotonic() - started
            metrics = _step_metrics(result) | {"train/learning_rate": self._rate(index)}
            if step % self.config.eval_every == 0 or step == total:
                metrics |= self._evaluate()
            self.state["history"].append({"step": step, **metrics})
            progress.metrics(step, **metrics)
            progress.progress(step, total, "step")
            stopping = self.ctx.stop.is_set() and step < total
            if stopping or (step % self.config.checkpoint_every == 0 and step < total):
                self._checkpoint()
            if stopping:
                self.ctx.check_stop(f"a checkpoint of step {step} of {total} was kept")
        self._finish()

    def _new_draft(self, target: Target) -> Draft:
        torch.manual_seed(self.ctx.config.recipe.seed)
        config = DraftConfig.for_target(
            target.config,
            self.source.capture_layers,
            self.config.draft_vocab_size,
            self.config.intermediate_size,
        )
        draft = Draft(config, target.embed.weight.detach()).to(target.device)
        counts = torch.zeros(target.vocab_size, dtype=torch.int64)
        for ref in self.refs:
            ids = self.source.input_ids(ref)
            for start, end in ref.spans:
                counts += torch.bincount(ids[start:end], minlength=target.vocab_size)
        distinct = int((counts > 0).sum())
        if distinct < config.draft_vocab_size < target.vocab_size:
            self.ctx.progress.info(
                f"answers hold {distinct} distinct tokens; the draft vocabulary of "
                f"{config.draft_vocab_size} is filled up with the lowest unused ids"
            )
        special = {*target.eos_ids(), *open_tokenizer(self.ctx).all_special_ids}
        draft.set_vocab(vocab.choose(counts, config.draft_vocab_size, special))
        start_from_target(draft, self.head_VH)
        return draft

    def _resume(self) -> None:
        restore_best(self.work)
        folder = latest_checkpoint(self.work)
        if folder is not None:
            self.state = load_checkpoint(folder, self.draft, self.optimizer)
            self.ctx.progress.info(f"going on from the checkpoint of step {self.state['step']}")

    def _pack(self, samples: list[Sample]) -> Batch:
        cut = [_cut(sample, self.config.max_length) for sample in samples]
        return pack(cut, self.config.ttt_steps, device=self.head_VH.device)

    def _step(self, batch: Batch, index: int) -> Objective:
        for group in self.optimizer.param_groups:
            group["lr"] = self._rate(index)
        self.draft.train()
        result = objective(self.draft, self.teacher, batch, self.config.step_decay)
        loss = float(result.loss.detach())
        if not math.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss} at step {index + 1}")
        self.optimizer.zero_grad(set_to_none=True)
        result.loss.backward()
        torch.nn.utils.clip_grad_norm_(self.draft.parameters(), self.config.grad_clip)
        self.optimizer.step()
        return result

    def _rate(self, index: int) -> float:
        """Linear warm-up, then a cosine to 5% of the peak."""
        total = len(self.batches)
        warm = max(1, round(self.config.warmup_fraction * total))
        if index < warm:
            return self.config.learning_rate * (index + 1) / warm
        done = (index - warm) / max(1, total - warm)
        return self.config.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))

    def _evaluate(self) -> dict[str, float]:
        self.draft.eval()
        samples = [self.source.load(ref) for ref in self.heldout]
        found = chain_acceptance(self.draft, samples, self.depth)
        best = self.state["best"]
        if best is None or found.length > best["acceptance_length"]:
            save_best(self.work, self.draft, self.num_target_layers)
            self.state["best"] = {
                "step": self.state["step"],
                "acceptance_length": found.length,
                "acceptance_by_position": found.by_position,
            }
        rates = {f"eval/acceptance_{n}": rate for n, rate in enumerate(found.by_position)}
        return {"eval/acceptance_length": found.length, **rates}

    def _checkpoint(self) -> None:
        folder = save_checkpoint(
            self.work, self.draft, self.num_target_layers, self.optimizer, self.state
        )
        path = folder.relative_to(self.ctx.run).as_posix()
        self.ctx.progress.emit("checkpoint", step=self.state["step"], path=path)

    def _finish(self) -> None:
        best: Path = self.work / "best"
        shutil.copytree(best, self.ctx.out / "draft", dirs_exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in self.state["history"])
        (self.ctx.out / "history.jsonl").write_text(lines)
        draft = official.load(best, self.draft.embed_VH)
        samples = [self.source.load(ref) for ref in self.heldout]
        share = coverage(samples, draft, self.head_VH, self.softcap)
        cut = sum(ref.length > self.config.max_length for ref in self.refs)
        self.ctx.summary |= {
            "steps": self.state["step"],
            "best_step": self.state["best"]["step"],
            "acceptance_length": round(self.state["best"]["acceptance_length"], 4),
            "acceptance_by_position": [
                round(x, 4) for x in self.state["best"]["acceptance_by_position"]
            ],
            "depth": self.depth,
            "coverage": round(share, 4),
            "parameters": sum(p.numel() for p in draft.parameters()),
            "train_samples": len(self.refs),
            "samples_cut": cut,
            "samples_left_out": self.left_out,
            "train_tokens": self.state["tokens"],
            "tokens_per_s": round(self.state["tokens"] / max(1e-9, self.state["seconds"]), 1),
        }


def teaches(ref: SampleRef, limit: int) -> bool:
    """Whether a row of its first `limit` is supervised: an answer's first token and its second."""
    return any(min(end, limit) - start >= 2 for start, end in ref.spans)


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
