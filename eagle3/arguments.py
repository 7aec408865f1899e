"""Types of command line arguments, for argparse."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def number(kind: type[int] | type[float], least: int) -> Callable[[str], float]:
    """A finite number of `least` or more."""

    def read(text: str) -> float:
        value = kind(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text}: expected {least} or more")
        return value

    read.__name__ = kind.__name__  # argparse names it where the text is no number
    return read
