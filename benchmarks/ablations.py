"""What each idea of EAGLE-3 is worth: trainings that leave one out, beside one that does not.

    python -m benchmarks.ablations train RUN ARM [--epochs N] [--seed N]    one arm; several may run
    python -m benchmarks.ablations judge RUN [--tasks FILE ...]  the table, over all that have ended
           [--given OTHER]

RUN has features (`eagle3 extract RUN`). An arm trains in RUN/ablations/ARM on them, as any training
does, so it can be stopped and goes on. All arms see the same samples in the same order; give an arm
whose steps cost less more `--epochs` for the same time. All are judged by greedy chains of one
depth along those held-out answers that chose no checkpoint, one by one, so that the difference to
the control is paired by answer. `--tasks` names task files (JSON lines with `turns`): answers to
their first turns are judged task by task, and the mean is that of the tasks. `--given` is another
run with the same prompts whose answers were not regenerated (`regenerate.mode: given`) and whose
`control` has been trained: its draft is judged along this run's answers, which are the target's.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import Tensor

from eagle3.bench.metrics import Counts, Pair, mean_interval, tau_gain
from eagle3.data.features import Sample, SampleRef
from eagle3.data.local import capture_layers, target_dir
from eagle3.data.records import Prompt, Split, read_records
from eagle3.data.source import FeatureSource, open_source
from eagle3.export import official
from eagle3.progress import Progress
from eagle3.run import Context, current, read_config, read_manifest, run_stage, write_json
from eagle3.stages import STAGES
from eagle3.target import Target
from eagle3.train.evaluate import chain_acceptance
from eagle3.train.samples import choose

ARMS: dict[str, dict[str, Any]] = {
    "control": {},
    "no_ttt": {"ttt_steps": 1},
    "last_layer": {},
    "head_random": {"head": "random"},
    "head_copied": {"head": "target"},
}
"""Changes of `train`; `last_layer` reads the target's final hidden state in place of the three."""

SHARED = ("resolve", "prepare", "regenerate", "extract")
DEPTH = 3


class LastLayer:
    """Features of the final hidden state alone, thrice: the draft keeps its sizes."""

    def __init__(self, source: FeatureSource) -> None:
        self.source = source
        self.hidden_size, self.vocab_size = source.hidden_size, source.vocab_size
        self.capture_layers = source.capture_layers

    def samples(self, split: Split) -> list[SampleRef]:
        return self.source.samples(split)

    def input_ids(self, ref: SampleRef) -> Tensor:
        return self.source.input_ids(ref)

    def load(self, ref: SampleRef) -> Sample:
        return _last(self.source.load(ref))

    def batches(self, order: Iterable[list[SampleRef]]) -> Iterator[list[Sample]]:
        for batch in self.source.batches(order):
            yield [_last(sample) for sample in batch]

    def settle(self) -> None:
        self.source.settle()

    def close(self) -> None:
        self.source.close()


def _last(sample: Sample) -> Sample:
    return replace(sample, features=sample.hidden.repeat(1, 3))


def opener(arm: str) -> Callable[[Context, Target], FeatureSource]:
    if arm != "last_layer":
        return open_source
    return lambda ctx, target: LastLayer(open_source(ctx, target))


def train(
    run: Path, arm: str, epochs: float | None, eval_every: int, seed: int | None = None
) -> None:
    folder = run / "ablations" / arm
    (folder / "stages").mkdir(parents=True, exist_ok=True)
    for stage in SHARED:
        current(run, stage)
        link = folder / "stages" / stage
        if not link.is_symlink():
            link.symlink_to(Path("..", "..", "..", "stages", stage))
    config = read_config(run)
    changes = ARMS[arm] | {"eval_every": eval_every, "epochs": epochs or config.recipe.train.epochs}
    section = config.recipe.train.model_copy(update=changes)
    depth = min(DEPTH, section.ttt_steps)  # a checkpoint is chosen no deeper than it was trained
    bench = config.recipe.benchmark.model_copy(update={"depth": depth})
    changed: dict[str, Any] = {"train": section, "benchmark": bench}
    changed |= {} if seed is None else {"seed": seed}
    recipe = config.recipe.model_copy(update=changed)
    config = config.model_copy(update={"recipe": recipe})
    write_json(folder / "config.json", config.model_dump(mode="json"))
    with patch("eagle3.train.loop.open_source", opener(arm)):
        run_stage(STAGES["train"], folder, sys.stdout)


@dataclass(frozen=True)
class Judged:
    """One training on every judging answer: tokens emitted, and rounds."""

    arm: str
    passes: int
    steps: int
    seconds: float
    emitted: dict[str, int]
    rounds: dict[str, int]

    def tau(self, groups: list[list[str]]) -> float:
        """The mean over groups of each one's tau."""
        taus = [sum(self.emitted[i] for i in g) / sum(self.rounds[i] for i in g) for g in groups]
        return sum(taus) / len(taus)

    def counts(self, answer: str) -> Counts:
        return Counts(self.emitted[answer], self.rounds[answer])


def judge(run: Path, tasks: list[Path], given: Path | None = None) -> None:
    groups = _groups(run, tasks)
    arms = [arm for arm in ARMS if (run / "ablations" / arm / "stages/train/current").is_file()]
    found = {arm: measure(run / "ablations" / arm, arm, groups) for arm in arms}
    if given is not None:
        other = current(given / "ablations" / "control", "train")
        found["given"] = measure(run / "ablations" / "control", "given", groups, other)
    sys.stdout.write(_table(found, groups))


def _groups(run: Path, tasks: list[Path]) -> dict[str, list[str]]:
    """Ids of judging answers, by task; all of them as one where no tasks are named."""
    prompts = read_records(current(run, "prepare") / "prompts.jsonl", Prompt)
    heldout = [prompt for prompt in prompts if prompt.split == "heldout"]
    if not tasks:
        return {"held out": [prompt.id for prompt in heldout]}
    said = {prompt.messages[0]["content"].strip(): prompt.id for prompt in heldout}
    groups = {}
    for path in tasks:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        first = [row["turns"][0].strip() for row in rows]
        groups[path.stem] = [said[text] for text in first if text in said]
    found = {task: ids for task, ids in groups.items() if ids}
    if not found:
        raise SystemExit(f"no question of these tasks is held out in {run}: judge without --tasks")
    return found


def measure(
    folder: Path, arm: str, groups: dict[str, list[str]], other: Path | None = None
) -> Judged:
    """Args: other: a training's output in place of the one in `folder`."""
    config, trained = read_config(folder), other or current(folder, "train")
    inputs = {stage: current(folder, stage) for stage in SHARED}
    progress = Progress("judge", folder / "judge.jsonl", sys.stderr)
    ctx = Context(folder, "judge", config, trained, inputs, progress, threading.Event())
    target = Target.load(target_dir(ctx), capture_layers=capture_layers(ctx))
    source = opener(arm)(ctx, target)
    try:
        chosen = choose(source, config.recipe.train, config.recipe.seed, progress)
        wanted = {i for ids in groups.values() for i in ids} - {r.id for r in chosen.heldout}
        draft = official.load(trained / "draft", target.embed.weight.detach())
        refs = [ref for ref in source.samples("heldout") if ref.id in wanted]
        found = {ref.id: chain_acceptance(draft, [source.load(ref)], DEPTH) for ref in refs}
    finally:
        source.close()
    summary = read_manifest(trained)["summary"]
    passes, rate = summary["train_tokens"], summary["tokens_per_s"]
    emitted = {i: one.emitted for i, one in found.items() if one.rounds}
    rounds = {i: one.rounds for i, one in found.items() if one.rounds}
    return Judged(arm, passes, summary["steps"], passes / rate, emitted, rounds)


def _table(found: dict[str, Judged], groups: dict[str, list[str]]) -> str:
    control = found["control"]
    ids = [[i for i in group if i in control.rounds] for group in groups.values()]
    head = f"{'arm':14}{'passes':>11}{'seconds':>9}" + "".join(f"{t:>11}" for t in groups)
    lines = [head + f"{'mean':>8}  against the control (95%)"]
    for arm, one in found.items():
        low, high = difference(one, control, ids)
        taus = "".join(f"{one.tau([group]):11.3f}" for group in ids)
        lines.append(
            f"{arm:14}{one.passes:11,}{one.seconds:9.0f}{taus}{one.tau(ids):8.3f}"
            f"  {one.tau(ids) - control.tau(ids):+.3f} ({low:+.3f} to {high:+.3f})"
        )
    return "\n".join(lines) + "\n"


def difference(one: Judged, control: Judged, ids: list[list[str]]) -> tuple[float, float]:
    """95% interval of the difference of mean tau; an answer brings both trainings."""
    tasks = [[Pair(control.counts(i), one.counts(i)) for i in group] for group in ids]
    return mean_interval(tasks, tau_gain, seed=0)


def main() -> None:
    parser = argparse.ArgumentParser(description="What each idea of EAGLE-3 is worth.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("train", help="train one arm")
    one.add_argument("run", type=Path)
    one.add_argument("arm", choices=ARMS)
    one.add_argument("--epochs", type=float)
    one.add_argument("--eval-every", type=int, default=200, help="steps")
    one.add_argument("--seed", type=int, help="of the training; the run's own")
    table = commands.add_parser("judge", help="judge all that have ended")
    table.add_argument("run", type=Path)
    table.add_argument("--tasks", type=Path, nargs="+", default=[])
    table.add_argument("--given", type=Path, help="a run with answers that the data brought")
    args = parser.parse_args()
    if args.command == "train":
        train(args.run, args.arm, args.epochs, args.eval_every, args.seed)
    else:
        judge(args.run, args.tasks, args.given)


if __name__ == "__main__":
    main()
