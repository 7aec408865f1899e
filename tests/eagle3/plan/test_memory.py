"""The plan's memory against what real training steps take."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from eagle3.plan import memory
from eagle3.train import loss
from tests.eagle3.plan.one_step import Sizes, as_argument, counted
from tests.together import run_together

TOLERANCE = 0.15

SMALL = {
    "wide vocabulary": Sizes(96, 256, 6, 2, 6000, 3000, 64, 4, 3, 24),
    "long sequence": Sizes(64, 128, 4, 4, 500, 500, 384, 1, 5, 8),
    "many steps": Sizes(128, 384, 8, 2, 1000, 1000, 48, 6, 7, 16),
    "weights alone": Sizes(256, 1024, 8, 8, 400, 200, 16, 2, 2, 4),
    "recomputed": Sizes(128, 384, 8, 2, 300, 300, 96, 6, 7, 16, recompute=True),
    "bfloat16": Sizes(128, 384, 8, 2, 1000, 1000, 48, 6, 7, 16, "bfloat16"),
}

REAL = {
    # The demo target under the quick recipe, and a small model with a long context.
    "demo": Sizes(576, 1536, 9, 3, 49152, 8192, 160, 6, 3, 60),
    "long": Sizes(256, 1024, 8, 4, 4096, 4096, 1024, 1, 5, 16),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_step_takes_what_was_planned(name: str) -> None:
    assert SMALL[name].planned().total == pytest.approx(counted(SMALL[name]), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", REAL)
def test_a_process_takes_what_was_planned(name: str) -> None:
    # Freed tensors go back to the system at once, so that its peak is the peak of what lives.
    done = subprocess.run(
        [sys.executable, "-m", "tests.eagle3.plan.one_step", as_argument(REAL[name])],
        env=os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert REAL[name].planned().total == pytest.approx(int(done.stdout), rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_of_several_takes_what_was_planned() -> None:
    sizes = Sizes(640, 2560, 8, 8, 4000, 4000, 32, 2, 2, 16, processes=2)
    arguments = ["-m", "tests.eagle3.plan.one_step", as_argument(sizes)]
    codes, outputs = run_together(arguments, MALLOC_MMAP_THRESHOLD_="65536", OMP_NUM_THREADS="1")
    assert codes == [0, 0], outputs
    for output in outputs:
        assert sizes.planned().total == pytest.approx(int(output), rel=TOLERANCE)
    assert sizes.planned().total < 0.85 * replace(sizes, processes=1).planned().total


def test_the_ledger_knows_the_chunks_of_the_loss() -> None:
    assert (memory.LOSS_ROWS, memory.LOSS_LOGITS) == (loss.ROWS, loss.ELEMENTS)
