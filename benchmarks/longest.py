"""The longest sequence whose training step fits into some memory, found without computing it.

A step runs with every large tensor allocated and none of them filled: operations are asked for the
shapes of their results alone (torch's meta device), and memory that is never written to takes no
room. What is alive is added up as it comes and goes, so that a step of 20 GiB is judged in seconds
on a small machine. Temporaries inside a kernel are not seen; at one length the sum is therefore
checked against the memory of a real step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks.steps_apart import Apart, resident
from benchmarks.training_case import Case, Method, Step

GRAIN = 64
"""Lengths are multiples of it."""

SMALL = 2**16
"""Tensors of at most so many numbers are computed: counters, step numbers, the loss."""

CHECKED = 256
"""The length at which the sum is compared with a real step."""


class Full(Exception):
    """More memory was asked for than allowed."""


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Under it, large floating-point tensors are allocated and not computed.

    Args:
        limit: bytes that may be alive; more raises `Full`.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit = limit
        self.peak = 0
        self._known: dict[StorageWeakRef, int] = {}  # those that have died are dropped at times

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = self._result(func, args, kwargs or {})
        self._enter(leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
        return out

    def _result(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.is_view or func is torch.ops.aten._unsafe_view.default:
            return func(*args, **kwargs)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if given and not any(map(_large, given)):
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return _written(func, args, kwargs)
        shapes = _on_meta(func, args, kwargs, given)
        return func(*args, **kwargs) if shapes is None else tree_map_only(Tensor, _filled, shapes)

    def _enter(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._known[StorageWeakRef(storage)] = storage.nbytes()  # type: ignore[no-untyped-call]
        if sum(self._known.values()) <= self.peak:
            return
        self._known = {ref: n for ref, n in self._known.items() if not ref.expired()}  # type: ignore[no-untyped-call]
        self.peak = max(self.peak, sum(self._known.values()))
        if self.peak > self.limit:
            raise Full


def _large(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > SMALL


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation that writes into its arguments returns: these."""
    written = []
    for n, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written.append(args[n] if n < len(args) else kwargs[argument.name])
    if not func._schema.returns:
        return None
    return written[0] if len(written) == 1 else tuple(written)


def _on_meta(func: Any, args: Any, kwargs: Any, given: list[Tensor]) -> Any:
    """The results' shapes; None where they depend on values, or are small and made of nothing."""
    takes_device = any(argument.name == "device" for argument in func._schema.arguments)
    if not given and not takes_device:
        return None
    args, kwargs = tree_map_only(Tensor, lambda t: t.to("meta"), (args, kwargs))
    if takes_device:
        kwargs = {**kwargs, "device": torch.device("meta")}
    try:
        out = func(*args, **kwargs)
    except NotImplementedError:
        return None
    large = any(_large(leaf) for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
    return out if large or given else None


def _filled(shape: Tensor) -> Tensor:
    """Memory of a shape: not written to where it is of floats, zeros where it may be an index."""
    if shape.is_floating_point():
        return torch.empty_strided(shape.shape, shape.stride(), dtype=shape.dtype)
    return torch.zeros(shape.shape, dtype=shape.dtype)


def counted(case: Case, method: Method, limit: int) -> int | None:
    """Bytes that a step takes at most beside this process's own; None where that is over."""
    with Ledger(limit) as ledger:
        try:
            step = Step(case, method)
            step.begin()
            step()
        except Full:
            return None
    peak: int = ledger.peak
    return peak


def longest(case: Case, method: Method, limit_gib: float) -> str:
    """The finding, as a line."""
    own = resident("VmRSS")
    limit = round(limit_gib * 2**30) - own
    fits = search(lambda n: counted(replace(case, length=n), method, limit), limit)
    small = replace(case, length=CHECKED)
    sum_ = counted(small, method, 2**50) or 0
    with Apart(small, method, torch.get_num_threads()) as process:
        real = process.step().peak
    return (
        f"{method}: {fits} tokens fit {limit_gib:g} GiB (at {CHECKED}: counted "
        f"{(sum_ + own) / 2**30:.2f} GiB, measured {real / 2**30:.2f} GiB)"
    )


def search(peak_at: Callable[[int], int | None], limit: int) -> int:
    """The longest length, a multiple of `GRAIN`, whose peak is within a limit; 0 where none is.

    Peaks grow about like the length, so the next length to try lies where a line through the last
    two ends; where that was too long already, halfway.

    Args:
        peak_at: the peak in bytes, None where it is over the limit. It grows with the length.
    """
    fits, over, peak = 0, 0, 0
    ahead = float(GRAIN)
    while not over or over - fits > GRAIN:
        ahead = min(ahead, 3 * fits)  # short sequences may say little of long ones
        length = fits + max(GRAIN, int(ahead) // GRAIN * GRAIN)
        if over and length >= over:
            length = (fits + over) // 2 // GRAIN * GRAIN
        found = peak_at(length)
        if found is None:
            over = length
            continue
        a_token = max(1.0, (found - peak) / (length - fits))
        fits, peak = length, found
        ahead = (limit - peak) / a_token
    return fits
