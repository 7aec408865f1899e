"""How long each kind of work takes: a roofline with assumed shares of the peak (`hardware.yaml`).

Work takes as long as its arithmetic at that share of the peak FLOP/s, or as long as its bytes at
that share of the memory's bandwidth, whichever is longer. What talks to other devices is taken not
to overlap. Counts are of multiply-adds times two.
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle3.config import Recipe
from eagle3.plan.devices import Hardware, Utilisation
from eagle3.plan.shape import DraftShape, TargetShape
from eagle3.plan.tokens import Workload

GRADIENT = 3
"""A training step is worth this many forward passes: one forward, two products back for each."""


@dataclass(frozen=True)
class Machine:
    """A target and its draft on some hardware, with the number formats that are used there."""

    target: TargetShape
    draft: DraftShape
    hardware: Hardware
    target_bytes: int
    """Bytes of one weight of the target, and of one number in its cache."""
    served: bool = False
    """A serving engine runs the target."""

    @property
    def shares(self) -> Utilisation:
        return self.hardware.shares(self.target_bytes, self.served)

    def group(self, reserve: float = 0.2) -> int:
        """Devices that hold one copy of the target together: 1, 2, 4, …

        Args:
            reserve: share of a device's memory that is left for everything else.
        """
        room = self.hardware.device.memory * (1 - reserve)
        size = 1
        while self.target.parameters * self.target_bytes > room * size:
            size *= 2
        return size

    def read_seconds(self, tokens: float, length: float, sharded: int = 1) -> float:
        """One process reads text, `tokens` in all, in sequences of `length`.

        Args:
            sharded: processes that hold the target's weights together; each layer is gathered once
                a batch of sequences.
        """
        flop = 2.0 * self.target.active_parameters
        flop += 2.0 * self.target.num_layers * self.target.query_width * length
        rate = self.hardware.flops(self.target_bytes) * self.shares.read
        forwards = max(1.0, tokens / READ_TOKENS)
        seconds = tokens * flop / rate + forwards * self.target.num_layers * self.shares.layer
        if sharded > 1:
            weights = self.target.parameters * self.target_bytes * (sharded - 1) / sharded
            seconds += forwards * weights / self.hardware.device.link
        return seconds

    def write_rate(self, batch: int, length: float, devices: int) -> float:
        """Tokens a second that a group of devices writes, `batch` sequences at a time.

        Args:
            length: tokens that a sequence has behind it, on average.
        """
        cache = self.target.cache_bytes(self.target_bytes) * length
        flop = 2.0 * self.target.active_parameters
        flop += 4.0 * self.target.num_layers * self.target.query_width * length
        # A batch goes through more experts than one token does, and at most through all.
        touched = min(self.target.parameters, self.target.active_parameters * batch)
        u, peak = self.shares, self.hardware.flops(self.target_bytes)
        compute = batch * flop / (peak * devices * u.decode)
        moved = touched * self.target_bytes + batch * cache
        memory = moved / (self.hardware.bandwidth * devices * u.bandwidth)
        return batch / (max(compute, memory) + self.target.num_layers * u.layer)

    def product_bytes(self, recipe: Recipe) -> int:
        """Bytes of a number that training computes products in."""
        precision = recipe.train.precision
        if precision == "auto":
            return 4 if self.hardware.device.is_cpu else 2
        return 2 if precision == "bfloat16" else 4

    def train_seconds(self, work: Workload, recipe: Recipe, processes: int) -> float:
        """Training on all token passes, by processes that share each batch."""
        steps, product = recipe.train.ttt_steps, self.product_bytes(recipe)
        shares = self.hardware.shares(product)
        flop = work.train_token_passes * training_flop(self.draft, work, steps)
        seconds = flop / (self.hardware.flops(product) * shares.train * processes)
        # A process takes one sample at least, however small its share of a batch.
        share = max(work.sample_tokens, recipe.train.batch_tokens / processes)
        passes = work.train_token_passes / (processes * share)
        return seconds + passes * steps * GRADIENT * shares.layer


READ_TOKENS = 4096
"""Tokens of one forward of the target while it only reads."""


def training_flop(draft: DraftShape, work: Workload, steps: int) -> float:
    """Arithmetic of a training step for each token of a sample: keys and values of step 0 for all
    tokens, the rest for supervised rows and each of `steps` draft steps."""
    h, q, n = draft.hidden_size, draft.query_width, draft.key_width
    row = 2.0 * (3 * h * h + 2 * h * 2 * n)
    near = 2.0 * 2 * h * 2 * n * (steps - 1) / steps
    layer = 2.0 * (2 * h * q + q * h + 3 * h * draft.intermediate_size) + near
    attention = 2.0 * q * work.sample_tokens
    head = 2.0 * h * draft.vocab_size
    return GRADIENT * row + work.supervised * (
        steps * GRADIENT * (layer + attention + head) + head  # and the target's, once
    )
