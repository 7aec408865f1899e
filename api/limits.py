"""How often a key may ask: a bucket of tokens for each, in this process."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from fastapi import Request

from jobs.errors import RateLimited

BURST_S = 2.0
"""Seconds' worth of requests that may come at once."""

MOST_BUCKETS = 10_000
"""Full buckets say nothing and are dropped when there are more."""


class Limiter:
    """Token buckets by owner.

    Args:
        rate: requests a second.
        clock: seconds, for tests.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.clock = rate, clock
        self.size = max(1.0, rate * BURST_S)
        self._buckets: dict[str, tuple[float, float]] = {}
        """What was left, and when."""
        self._lock = threading.Lock()

    def take(self, request: Request, owner: str) -> None:
        """Count one request; the answer's headers say what is left.

        Raises:
            RateLimited: nothing is left.
        """
        with self._lock:
            left = self._left(owner) - 1
            if left >= 0:
                self._buckets[owner] = (left, self.clock())
        reset = math.ceil((self.size - max(left, 0)) / self.rate)
        request.state.rate_limit = {
            "ratelimit-limit": f"{self.size:.0f}",
            "ratelimit-remaining": f"{max(left, 0):.0f}",
            "ratelimit-reset": str(reset),
        }
        if left < 0:
            wait = math.ceil(-left / self.rate)
            raise RateLimited(f"more than {self.rate:g} requests a second; wait {wait} s", wait)

    def _left(self, owner: str) -> float:
        if owner not in self._buckets and len(self._buckets) >= MOST_BUCKETS:
            self._buckets = {o: b for o, b in self._buckets.items() if self._filled(b) < self.size}
        return self._filled(self._buckets.get(owner, (self.size, self.clock())))

    def _filled(self, bucket: tuple[float, float]) -> float:
        left, at = bucket
        return min(self.size, left + (self.clock() - at) * self.rate)
