"""The `train` stage: from target features to the draft that drafts best on held-out answers."""

from __future__ import annotations

import json
import math
import shutil
import time
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any

import torch

from eagle3 import parallel
from eagle3.config import TrainConfig
from eagle3.data.features import Sample, SampleRef
from eagle3.data.local import open_taught
from eagle3.data.source import open_source
from eagle3.export import official
from eagle3.process import processes, rank
from eagle3.run import Context
from eagle3.train.batch import Batch, pack, plan_batches
from eagle3.train.build import new_draft
from eagle3.train.checkpoint import (
    deciding,
    latest_checkpoint,
    load_checkpoint,
    restore_best,
    save_best,
    save_checkpoint,
)
from eagle3.train.evaluate import Evaluation, coverage
from eagle3.train.guard import Guard, non_finite
from eagle3.train.labels import Teacher
from eagle3.train.objective import Objective, Supervised, score, weights
from eagle3.train.precision import Precision, choose_precision, computing_in
from eagle3.train.samples import choose
from eagle3.train.schedule import learning_rate
from eagle3.train.sharded import add_gradients, clip, moments, spread, whole


def train(ctx: Context) -> None:
    """Train on `extract`'s features; writes `draft/` and `history.jsonl`."""
    with ExitStack() as opened:
        Trainer(ctx, opened).run()


class Trainer:
    """State of one training: what a checkpoint holds, and what can be rebuilt from the inputs."""

    def __init__(self, ctx: Context, opened: ExitStack) -> None:
        self.ctx = ctx
        self.config: TrainConfig = ctx.config.recipe.train
        self.leads = rank() == 0
        self.depth = ctx.config.recipe.draft_depth
        self.work = ctx.out / "work"
        self.work.mkdir(parents=True, exist_ok=True)
        target = open_taught(ctx)
        self.source = opened.enter_context(closing(open_source(ctx, target)))
        self.num_target_layers = target.num_layers
        self.head_VH = target.head_weight().detach()
        self.softcap = target.softcap
        self.samples = choose(self.source, self.config, ctx.config.recipe.seed, ctx.progress)
        self.source.settle()
        self.draft = new_draft(ctx, target, self.source, self.samples.train)
        self.teacher = Teacher.of(self.head_VH, self.draft, self.softcap)
        self.batches = plan_batches(
            self.samples.train,
            self.config.batch_tokens,
            self.config.max_length,
            self.config.epochs,
            ctx.config.recipe.seed,
        )
        self.steps = math.ceil(len(self.batches) / self.config.accumulate)
        parallel.enough_for_all(self.config.accumulate)
        if self.config.sharded and processes() > 1:
            spread(self.draft)
        self.kept = list(self.draft.parameters())
        self.optimizer = torch.optim.AdamW(
            self.kept,
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
            "precision": self._precision(target.device),
            "history": [],
            "recipe": deciding(ctx),
        }

    def _precision(self, device: torch.device) -> Precision:
        """The first process's choice: others may measure something else."""
        here = choose_precision(self.config.precision, device)
        return "bfloat16" if parallel.from_first(here == "bfloat16") else "float32"

    def _planned(self, step: int) -> list[list[SampleRef]]:
        """The batches of an optimiser step, of all processes."""
        size = self.config.accumulate
        return self.batches[step * size : (step + 1) * size]

    def run(self) -> None:
        self._resume()
        state, progress, total = self.state, self.ctx.progress, self.steps
        started, before = time.monotonic(), state["seconds"]
        progress.progress(state["step"], total, "step")
        shares = [parallel.share(self._planned(step)) for step in range(state["step"], total)]
        loaded = self.source.batches(batch for own in shares for batch in own)
        for own in shares:
            if self._stale():
                break
            groups = list(islice(loaded, len(own)))
            self.source.settle()
            metrics = self._step(groups)
            state["step"] += 1
            state["seconds"] = before + time.monotonic() - started
            if state["step"] % self.config.eval_every == 0 or state["step"] == total:
                with whole(self.draft):
                    metrics |= self._evaluate() if self.leads else {}
                    self.source.settle()
                state["stale"] = parallel.from_first(state["stale"])
            if metrics:
                state["history"].append({"step": state["step"], **metrics})
                progress.metrics(state["step"], **metrics)
            progress.progress(state["step"], total, "step")
            if state["step"] < total and not self._stale():
                self._keep()
        if self._stale():
            progress.info(
                f"stopped at step {state['step']} of {total}: {state['stale']} evaluations in a "
                "row found no longer acceptance length"
            )
        if self.leads:
            self._finish()
        self.source.settle()

    def _resume(self) -> None:
        folder = latest_checkpoint(self.work)
        if folder is not None:
            self.state = load_checkpoint(folder, self.draft, self.optimizer, self.state["recipe"])
            self.ctx.progress.info(f"going on from the checkpoint of step {self.state['step']}")
        if self.leads:
            restore_best(self.work, folder)
        self.guard = Guard(
            self.ctx.out / "skipped",
            self.config.max_skipped,
            self.state["skipped"],
            self.ctx.progress.warning,
            keeps=self.leads,
        )

    def _step(self, groups: list[list[Sample]]) -> dict[str, float]:
        """One optimiser step; its metrics, none when its batch had to be left out.

        Args:
            groups: the samples of each forward of this process; all their gradients add up.
        """
        index, limit = self.state["step"], self.config.max_length
        refs = [ref for batch in self._planned(index) for ref in batch]
        self.state["tokens"] += sum(min(ref.length, limit) for ref in refs)
        bad = non_finite(sample for group in groups for sample in group)
        faulty = parallel.named_anywhere(bad, [ref.id for ref in refs])
        if faulty:
            return self._skip(groups, f"features of {', '.join(faulty)} hold NaN or infinity")
        rate = learning_rate(self.config, index, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        result, norm = self._gradients([self._pack(group) for group in groups])
        loss = float(result.loss)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return self._skip(groups, f"the loss is {loss} and the gradient's norm is {norm}")
        self.optimizer.step()
        return result.metrics() | {"train/grad_norm": norm, "train/learning_rate": rate}

    def _skip(self, groups: list[list[Sample]], reason: str) -> dict[str, float]:
        """Leave the step out; the first process has a look at the samples of the others, too."""
        step = self.state["step"]
        if processes() > 1:
            groups = [[self.source.load(ref) for ref in refs] for refs in self._planned(step)]
            self.source.settle()
        self.guard.skip(step + 1, [sample for group in groups for sample in group], reason)
        return {}

    def _pack(self, samples: list[Sample]) -> Batch:
        cut = [sample.first(self.config.max_length) for sample in samples]
        return pack(cut, self.config.ttt_steps, device=self.head_VH.device)

    def _gradients(self, batches: list[Batch]) -> tuple[Objective, float]:
        """Gradients of the batches' loss, clipped, and their norm before that.

        Rows are weighted over all batches of all processes together: how a step is cut into them
        changes nothing.
        """
        config = self.config
        self.draft.train()
        self.optimizer.zero_grad(set_to_none=True)
        parts = [Supervised.of(self.draft, batch) for batch in batches]
        steps = config.ttt_steps
        shares = weights(parts, steps, config.step_decay, config.loss_per, parallel.total)
        results = []
        with whole(self.draft):
            for batch, part, share in zip(batches, parts, shares, strict=True):
                with computing_in(self.state["precision"], self.head_VH.device):
                    result = score(
                        self.draft, self.teacher, batch, part, share, config.loss, config.recompute
                    )
                torch.autograd.backward(result.loss)
                results.append(result.detach())
            add_gradients(self.draft.parameters(), self.kept)
        norm = clip(self.kept, config.grad_clip)
        return Objective.total(results, steps, parallel.total), norm

    def _evaluate(self) -> dict[str, float]:
        self.draft.eval()
        samples = [self.source.load(ref) for ref in self.samples.heldout]
        found = Evaluation.of(self.draft, self.teacher, samples, self.config, self.depth)
        best = self.state["best"]
        self.state["stale"] += 1
        if best is None or found.rounds.length > best["acceptance_length"]:
            save_best(self.work, self.draft, self.num_target_layers)
            self.state["stale"] = 0
            self.state["best"] = found.record(self.state["step"])
        return found.metrics()

    def _stale(self) -> bool:
        """Whether patience has run out: so many evaluations in a row were no better."""
        patience = self.config.patience
        return patience is not None and self.state["stale"] >= patience

    def _keep(self) -> None:
        """A checkpoint where one is due, and the end of this process where that was asked for."""
        step, stopping = self.state["step"], parallel.anywhere(self.ctx.stop.is_set())
        if stopping or step % self.config.checkpoint_every == 0:
            found = moments(self.optimizer)
            with whole(self.draft):
                if self.leads:
                    self._save(found)
        if stopping:
            parallel.wait()  # who leaves first ends the others
            self.ctx.stop.set()
            self.ctx.check_stop(f"a checkpoint of step {step} of {self.steps} was kept")

    def _save(self, found: dict[str, torch.Tensor]) -> None:
        folder = save_checkpoint(
            self.work,
            self.draft,
            self.num_target_layers,
            found,
            self.state,
            self.config.keep_checkpoints,
        )
        path = folder.relative_to(self.ctx.run).as_posix()
        self.ctx.progress.emit("checkpoint", step=self.state["step"], path=path)

    def _finish(self) -> None:
        """The best draft, the history and the summary."""
        state, best = self.state, self.state["best"]
        shutil.copytree(self.work / "best", self.ctx.out / "draft", dirs_exist_ok=True)
        lines = "".join(json.dumps(row) + "\n" for row in state["history"])
        (self.ctx.out / "history.jsonl").write_text(lines)
        draft = official.load(self.work / "best", self.draft.embed_VH)
        heldout = [self.source.load(ref) for ref in self.samples.heldout]
        self.ctx.summary |= {
            "steps": state["step"],
            "steps_planned": self.steps,
            "best_step": best["step"],
            "acceptance_length": round(best["acceptance_length"], 4),
            "acceptance_by_position": [round(x, 4) for x in best["acceptance_by_position"]],
            "depth": self.depth,
            "n_alpha": [round(x, 4) for x in best["n_alpha"]],
            "coverage": round(coverage(heldout, draft, self.head_VH, self.softcap), 4),
            "precision": self.state["precision"],
            "processes": processes(),
            "parameters": sum(p.numel() for p in draft.parameters()),
            "train_samples": len(self.samples.train),
            "samples_cut": self.samples.cut,
            "samples_left_out": self.samples.left_out,
            "batches_skipped": len(state["skipped"]),
            "train_tokens": state["tokens"],
            "tokens_per_s": round(state["tokens"] / max(1e-9, state["seconds"]), 1),
        }
