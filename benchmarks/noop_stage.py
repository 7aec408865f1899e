"""A stage that does nothing, and notes when its process began and ended: for `dead_time.py`.

noop_stage.py STAGE RUN
"""

from __future__ import annotations

import runpy
import sys
import time
from pathlib import Path

BEGAN = time.time()
FAKE = Path(__file__).parents[1] / "tests" / "workers" / "fake_eagle3.py"

if __name__ == "__main__":
    _, stage, run = sys.argv
    sys.argv = [str(FAKE), "ok", stage, run]
    try:
        runpy.run_path(str(FAKE), run_name="__main__")
    finally:
        with (Path(run) / "times").open("a") as file:
            file.write(f"{stage} {BEGAN} {time.time()}\n")
