"""A draft spread over processes (FSDP2): each keeps its part of weights, gradients and moments.

`fully_shard` makes every parameter a DTensor, cut along its first dimension. Training unrolls the
one decoder layer many times over, so weights are made whole once a step and not once a layer:

    with whole(draft):    gather all weights; forwards and backwards, however many a process has
        add_gradients     a parameter at a time, the sum of all, of which each keeps its part
    clip, AdamW           on the parts

So no process waits for another inside a forward, and one without a forward still takes part.
A draft of one process, or one that is not spread, is whole all the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial

from eagle3.parallel import gathered, part_of
from eagle3.process import processes, rank


def spread(draft: nn.Module) -> None:
    """From now on this process keeps its part; all begin with the same weights."""
    device = next(draft.parameters()).device.type
    fully_shard(draft, mesh=init_device_mesh(device, (processes(),)))


@contextmanager
def whole(draft: nn.Module) -> Iterator[None]:
    """Every process has all weights meanwhile; all must enter."""
    if not isinstance(draft, FSDPModule):
        yield
        return
    draft.unshard()
    try:
        yield
    finally:
        draft.reshard()


def add_gradients(used: Iterable[nn.Parameter], kept: Iterable[nn.Parameter]) -> None:
    """Give what is kept the sum over processes of the gradients of what was used.

    A process that had no forward adds nothing. Sums, not means: rows are weighted over the step.

    Args:
        used: the whole parameters.
        kept: the same ones, or this process's parts, in the same order.
    """
    if processes() == 1:
        return
    for parameter, own in zip(used, kept, strict=True):
        found = parameter.grad
        gradient = torch.zeros_like(parameter) if found is None else found
        parameter.grad = None
        if isinstance(own, DTensor):
            addend = DTensor.from_local(gradient, own.device_mesh, [Partial()], run_check=False)
            own.grad = addend.redistribute(placements=own.placements)
        else:
            dist.all_reduce(gradient)
            own.grad = gradient


def clip(kept: Iterable[nn.Parameter], limit: float) -> float:
    """Cut the gradient to a norm of `limit`; gives the norm before, of all parts together."""
    return float(gathered(nn.utils.clip_grad_norm_(kept, limit)))


def load_weights(draft: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put whole weights into a draft, spread or not; all names must be there and no others."""
    own = draft.state_dict()
    parts = {name: part_of(value, own.get(name, value)) for name, value in tensors.items()}
    draft.load_state_dict(parts, strict=True)


def moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's, `<parameter>.<name>`, whole, on the CPU of the first process; the others have
    nothing of them. Gathered one at a time; all must ask for it."""
    found = {}
    for index, slot in optimizer.state_dict()["state"].items():
        for name, value in slot.items():
            one = gathered(value.detach())
            if rank() == 0:
                found[f"{index}.{name}"] = one.cpu().contiguous()
    return found


def load_moments(optimizer: torch.optim.Optimizer, found: Mapping[str, Tensor]) -> None:
    """Put whole moments, as `moments` gives them, into an optimiser of whole or cut parameters."""
    saved = optimizer.state_dict()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in found.items():
        index, name = key.split(".", 1)
        slots.setdefault(int(index), {})[name] = part_of(value, parameters[int(index)])
    optimizer.load_state_dict({"state": slots, "param_groups": saved["param_groups"]})
