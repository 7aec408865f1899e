"""Linear layers for few rows in float32 on a CPU.

`F.linear` there is slow for 2 to 32 rows: verifying four tokens costs twice one token, and
speculation loses. Three forms of the same product are measured for each weight shape and number of
rows, and every row count, plain decoding's single row too, gets the fastest one:

    plain       F.linear
    transposed  (W @ x.T).T
    packed      oneDNN's product with the weight reordered once (a second copy of the weight)

A row may be padded to a few rows where that is faster. `packed` always runs two rows or more: its
kernels then give a row the same bits whatever the number of rows (seen with AVX-512 and with AVX2).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Form = Literal["plain", "transposed", "packed"]
Shape = tuple[int, int]

FORMS: tuple[Form, ...] = ("packed", "transposed", "plain")
ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 64)
"""Row counts that are measured; one in between takes the form of the next, above 64 that of 64."""

_BEYOND_CACHE = 40 << 20
"""Bytes of weights that a measurement walks through: a forward reads them from memory too."""

_MOST_COPIES = 96
"""Small weights of a small model stay in the cache, there and here."""

_PREFER = 1.1
"""Another form must be faster than `packed` by this factor to take its place."""

_PAD_SECONDS = 4e-6
"""What padding costs beside the product."""

_BUDGET_SECONDS = 2.5
"""Measuring ends here, after at least one pass over every form."""


@dataclass(frozen=True, slots=True)
class Choice:
    form: Form
    rows: int
    """Rows that are computed; more than given means padding."""
    seconds: float = 0.0
    """Measured time of one product; 0 where nothing was measured."""


@dataclass(frozen=True, slots=True)
class Table:
    """The choice for each weight shape (out, in) and row count of `ROWS`, at a thread count."""

    threads: int
    choices: dict[Shape, dict[int, Choice]]

    def choose(self, shape: Shape, rows: int) -> Choice:
        measured = next((r for r in ROWS if r >= rows), ROWS[-1])
        choice = self.choices[shape][measured]
        return choice if measured == rows else Choice(choice.form, rows, choice.seconds)

    def as_json(self) -> dict[str, Any]:
        shapes = {
            f"{out}x{in_}": {
                str(r): {"form": c.form, "rows": c.rows, "us": round(c.seconds * 1e6, 1)}
                for r, c in by_rows.items()
            }
            for (out, in_), by_rows in self.choices.items()
        }
        return {"threads": self.threads, "shapes": shapes}


_Key = tuple[int, Shape, tuple[Form, ...]]
_measured: dict[_Key, dict[int, Choice]] = {}


def can_pack(weight: Tensor) -> bool:
    """True where oneDNN has a packed product for this weight."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def pack(weight: Tensor) -> Tensor:
    """The weight [out, in] in oneDNN's own layout."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 16)


def product(form: Form, x_RI: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [R, in] times the weight, transposed, plus the bias; `packed` takes a packed weight."""
    if form == "packed":
        return torch.ops.mkldnn._linear_pointwise(x_RI, weight, bias, "none", [], "")
    if form == "plain":
        return F.linear(x_RI, weight, bias)
    out = (weight @ x_RI.T).T
    return out if bias is None else out + bias


def unmeasured(shapes: Iterable[Shape], packs: bool) -> Table:
    """The table to use where nothing is timed: packed, four rows or more; else transposed."""
    choices = {
        rows: Choice("packed", max(rows, 4)) if packs else Choice("transposed", rows)
        for rows in ROWS
    }
    if not packs:
        choices[ROWS[-1]] = Choice("plain", ROWS[-1])
    return Table(torch.get_num_threads(), dict.fromkeys(sorted(set(shapes)), choices))


def calibrate(shapes: Iterable[Shape], packs: bool = True) -> Table:
    """Measure the forms for these weight shapes (out, in) at the present number of threads.

    Takes about `_BUDGET_SECONDS`; once measured, a shape keeps its choices for the life of the
    process.
    """
    forms = FORMS if packs else FORMS[1:]
    threads = torch.get_num_threads()
    shapes = sorted(set(shapes))
    fresh = [shape for shape in shapes if (threads, shape, forms) not in _measured]
    for shape in fresh:
        times = _time_forms(forms, shape, _BUDGET_SECONDS / len(fresh))
        _measured[threads, shape, forms] = {rows: _fastest(times, rows) for rows in ROWS}
    return Table(threads, {shape: _measured[threads, shape, forms] for shape in shapes})


def _fastest(times: dict[tuple[Form, int], float], rows: int) -> Choice:
    """The fastest form, padded by up to three rows where that helps, with a bonus for `packed`."""
    found = [
        Choice(form, computed, seconds + _PAD_SECONDS * (computed > rows))
        for (form, computed), seconds in times.items()
        if rows <= computed <= rows + 3 and (form != "packed" or computed > 1)
    ]
    return min(found, key=lambda c: c.seconds / (_PREFER if c.form == "packed" else 1))


@torch.inference_mode()
def _time_forms(
    forms: tuple[Form, ...], shape: Shape, budget: float
) -> dict[tuple[Form, int], float]:
    """Least seconds of one product; a huge weight is measured on a part of its outputs."""
    deadline = time.perf_counter() + budget
    full_out, in_ = shape
    out = min(full_out, max(_BEYOND_CACHE // (4 * in_), 64))
    copies = min(max(_BEYOND_CACHE // (4 * in_ * out), 1), _MOST_COPIES)
    plain = [torch.full((out, in_), 0.01) for _ in range(copies)]
    packed = [pack(w) for w in plain] if "packed" in forms else []
    times: dict[tuple[Form, int], float] = {}
    while not times or time.perf_counter() < deadline:
        for rows in ROWS:
            x = torch.full((rows, in_), 0.01)
            for form in forms:
                weights = packed if form == "packed" else plain
                started = time.perf_counter()
                for weight in weights:
                    product(form, x, weight)
                seconds = (time.perf_counter() - started) / copies * full_out / out
                times[form, rows] = min(seconds, times.get((form, rows), seconds))
    return times


class RowLinear(nn.Linear):
    """A frozen linear layer that takes the measured form for the number of its rows.

    The packed copy is made once: later changes of the weight are not seen.
    """

    def __init__(self, linear: nn.Linear, table: Table) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.shape: Shape = (self.out_features, self.in_features)
        self._packed: Tensor | None = None
        self.use(table)

    def use(self, table: Table) -> None:
        """Follow another table (another number of threads)."""
        self._choices = {rows: table.choose(self.shape, rows) for rows in range(1, ROWS[-1] + 1)}
        if not any(c.form == "packed" for c in self._choices.values()):
            self._packed = None
        elif self._packed is None:
            self._packed = pack(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        lead = x.shape[:-1]
        x_RI = x.reshape(-1, self.in_features)
        rows = x_RI.shape[0]
        choice = self._choices[min(max(rows, 1), ROWS[-1])]
        if rows < choice.rows < ROWS[-1]:
            x_RI = _padded(x_RI, choice.rows)
        weight = self._packed if choice.form == "packed" else self.weight
        assert weight is not None
        out = product(choice.form, x_RI, weight, self.bias)
        return out[:rows].reshape(*lead, self.out_features)


def _padded(x_RI: Tensor, rows: int) -> Tensor:
    if x_RI.shape[0] == 1:  # one copy in place of four small operations
        return x_RI.expand(rows, -1).contiguous()
    return F.pad(x_RI, (0, 0, 0, rows - x_RI.shape[0]))


def speed_up(*modules: nn.Module, measure: bool = False) -> Table:
    """Put `RowLinear` in the place of every float32 CPU linear of these frozen modules.

    May be called again, as after a change of the thread count. Where memory is short for second
    copies of the weights, only forms without a copy are used.

    Args:
        measure: time the forms (`calibrate`); else packed wherever that is possible.

    Returns:
        The table that decides.
    """
    linears = [
        m
        for module in modules
        for m in module.modules()
        if isinstance(m, nn.Linear)
        and m.weight.device.type == "cpu"
        and m.weight.dtype == torch.float32
    ]
    fresh = sum(m.weight.nbytes for m in linears if getattr(m, "_packed", None) is None)
    room = 2 * fresh < psutil.virtual_memory().available
    packs = room and all(can_pack(m.weight) for m in linears)
    shapes = [(m.out_features, m.in_features) for m in linears]
    table = calibrate(shapes, packs) if measure else unmeasured(shapes, packs)
    eligible = set(map(id, linears))
    for parent in [p for module in modules for p in module.modules()]:
        for name, child in list(parent.named_children()):
            if isinstance(child, RowLinear):
                child.use(table)
            elif id(child) in eligible:
                assert isinstance(child, nn.Linear)
                setattr(parent, name, RowLinear(child, table))
    return table
