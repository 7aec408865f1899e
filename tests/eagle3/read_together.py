"""One of two processes that read a spread target, each rows of its own: `TARGET OUT DEVICE`."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from eagle3.parallel import together
from eagle3.process import leave, rank
from eagle3.spread import SpreadTarget

LENGTHS = {0: (9, 4, 12), 1: (7,)}
"""Of the sequences that each process reads."""


def ids(rank: int, n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * rank + n)
    return torch.randint(5, 60, (1, LENGTHS[rank][n]), generator=generator)


def main(target: str, out: str, device: str) -> None:
    with together():
        spread = SpreadTarget.load(target, device=device)
        found: dict[str, torch.Tensor] = {}
        for n, length in enumerate(LENGTHS[rank()]):
            cache = spread.new_cache(length)
            hidden, features = spread.forward(ids(rank(), n).to(device), cache, capture=True)
            assert features is not None
            said = {"hidden": hidden, "features": features, "logits": spread.logits(hidden)}
            found |= {f"{n}.{name}": value.cpu() for name, value in said.items()}
        spread.accompany()
        parameters = [p for p in spread.layers.parameters() if isinstance(p, DTensor)]
        assert len(parameters) == len(list(spread.layers.parameters()))
        sizes = [(p.to_local().numel(), p.numel()) for p in parameters]
        found["sizes"] = torch.tensor(sizes).sum(0)
        save_file(found, f"{out}/{rank()}.safetensors")
        dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave(0)
