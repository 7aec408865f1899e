"""One of several processes of a training, in which something happens: `RUN WHAT`.

train, extract   nothing, in that stage
term             the second process gets TERM in its fourth step
step             the first process gets TERM in its first step
nan              the features of sample 3 hold NaN
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace

from eagle3 import cli
from eagle3.data.features import Sample, SampleRef
from eagle3.data.offline import FeatureStore
from eagle3.process import rank
from eagle3.train.loop import Trainer


def main(run: str, what: str) -> None:
    step, load = Trainer._step, FeatureStore.load

    def terminated(self: Trainer, groups: list[list[Sample]]) -> dict[str, float]:
        if self.state["step"] == 3 and rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, groups)

    def terminated_at_once(self: Trainer, groups: list[list[Sample]]) -> dict[str, float]:
        if rank() == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(self, groups)

    def spoiled(self: FeatureStore, ref: SampleRef) -> Sample:
        sample = load(self, ref)
        nan = sample.features * float("nan")
        return replace(sample, features=nan) if ref.id == "3" else sample

    if what == "term":
        Trainer._step = terminated  # type: ignore[method-assign]
    elif what == "step":
        Trainer._step = terminated_at_once  # type: ignore[method-assign]
    elif what == "nan":
        FeatureStore.load = spoiled  # type: ignore[method-assign]
    cli.main(["extract" if what == "extract" else "train", run])


if __name__ == "__main__":
    main(*sys.argv[1:])
