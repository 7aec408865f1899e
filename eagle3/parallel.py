"""One stage on several processes: `torchrun --nproc-per-node N -m eagle3.cli train RUN`.

What `extract` reads is dealt out, a shard at a time. Of a training, an optimiser step's forwards
(`train.accumulate` of them) are dealt out; gradients, row counts and metrics are added up. Every
process thus makes the same update, and N of them the one that a single process would make, up to
rounding. Each holds the whole draft, or its part (`train/sharded.py`), and the whole target, or its
part (`spread.py`). Of one process, nothing here does anything.

Counts and decisions travel between CPUs (gloo), gradients where they are (NCCL between GPUs).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from eagle3.errors import BadInput, Stopped
from eagle3.process import processes, rank

Item = TypeVar("Item")

PATIENCE = timedelta(hours=12)
"""The others wait while the first evaluates; that one has died is told by its connection."""


@contextmanager
def together() -> Iterator[Callable[[], None]]:
    """Join the other processes; gives what waits for all of them."""
    gpus = torch.cuda.is_available()
    if gpus:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo", timeout=PATIENCE)
    try:
        yield wait
    except Stopped:
        dist.destroy_process_group()
        raise  # after any other error the others still wait: leaving is how they learn of it
    dist.destroy_process_group()


def wait() -> None:
    """Until every process is here."""
    if processes() > 1:
        dist.all_reduce(torch.zeros(1))


def share(items: Sequence[Item]) -> Sequence[Item]:
    """This process's part of what is dealt out: with N processes every N-th."""
    return items[rank() :: processes()]


def total(values: Tensor) -> Tensor:
    """The sum over processes, on the device of `values`, which keeps its own."""
    if processes() == 1:
        return values
    sums = values.detach().cpu().clone()
    dist.all_reduce(sums)
    return sums.to(values.device)


def from_first(value: int) -> int:
    """The first process's value, for all."""
    return int(total(torch.tensor(int(value) if rank() == 0 else 0)))


def anywhere(flag: bool) -> bool:
    """Whether it is so in some process."""
    return bool(total(torch.tensor(int(flag))))


def named_anywhere(names: Collection[str], known: Sequence[str]) -> list[str]:
    """Those of `known`, the same in every process, that some process names."""
    counts = total(torch.tensor([int(name in names) for name in known]))
    return [name for name, count in zip(known, counts.tolist(), strict=True) if count]


def gathered(value: Tensor) -> Tensor:
    """All of a tensor of which each process keeps a part; all must ask for it."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """What this process keeps of a whole tensor that all have, cut as `like` is."""
    if not isinstance(like, DTensor) or value.shape != like.shape:
        return value
    there = value.to(like.device)
    return distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)


def enough_for_all(accumulate: int) -> None:
    """Raises BadInput where a process would never have a forward."""
    if accumulate < processes():
        raise BadInput(
            f"{processes()} processes share the forwards of an optimiser step, and "
            f"train.accumulate is {accumulate}",
            f"set train.accumulate to {processes()}, or a multiple, and train.batch_tokens to as "
            "much less, or start fewer processes",
        )
