"""Every form is the same product; the table decides only how it is computed."""

from __future__ import annotations

import psutil
import pytest
import torch
from torch import nn

from eagle3.decode import linear
from eagle3.decode.linear import ROWS, Choice, Form, RowLinear, Table, calibrate, speed_up

needs_packed = pytest.mark.skipif(
    not linear.can_pack(torch.zeros(1)), reason="this build has no oneDNN product"
)


def table(form: Form, shape: tuple[int, int], extra: int) -> Table:
    return Table(1, {shape: {rows: Choice(form, rows + extra) for rows in ROWS}})


@needs_packed
@pytest.mark.parametrize("form", linear.FORMS)
@pytest.mark.parametrize("extra", [0, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_every_form_is_the_product(form: Form, extra: int, bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(72, 40, bias=bias).requires_grad_(False)
    fast = RowLinear(plain, table(form, (40, 72), extra))
    for rows in (1, 2, 3, 7, 9, 33, 64, 65, 130):
        x = torch.randn(rows, 72)
        torch.testing.assert_close(fast(x), plain(x), rtol=1e-5, atol=1e-5)
    x = torch.randn(2, 3, 72)
    torch.testing.assert_close(fast(x), plain(x), rtol=1e-5, atol=1e-5)


def test_the_fastest_form_wins_and_packed_wins_ties() -> None:
    times: dict[tuple[Form, int], float] = {
        (form, rows): 1.0 for form in linear.FORMS for rows in ROWS
    }
    assert linear._fastest(times, 4) == Choice("packed", 4, 1.0)
    times["transposed", 4] = 0.8
    assert linear._fastest(times, 4).form == "transposed"
    assert linear._fastest(times, 1).rows > 1  # one packed row is never computed alone


def test_padding_to_a_faster_row_count() -> None:
    times: dict[tuple[Form, int], float] = {("plain", rows): 1.0 for rows in ROWS}
    times["plain", 4] = 0.5
    choices = {rows: linear._fastest(times, rows).rows for rows in ROWS}
    assert [choices[r] for r in (1, 2, 3, 4, 5)] == [4, 4, 4, 4, 5]


def test_measured_choices_are_kept_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_BUDGET_SECONDS", 0.0)
    monkeypatch.setattr(linear, "_BEYOND_CACHE", 1 << 16)
    monkeypatch.setattr(linear, "_measured", {})
    first = calibrate([(24, 16), (24, 16), (8, 24)], packs=False)
    assert set(first.choices) == {(24, 16), (8, 24)}
    monkeypatch.setattr(linear, "_time_forms", None)  # would fail if it were called again
    assert calibrate([(8, 24)], packs=False).choices[8, 24] == first.choices[8, 24]
    assert all(c.form != "packed" for c in first.choices[8, 24].values())


def test_speed_up_replaces_every_linear_and_shares_its_weight() -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.ReLU(), nn.Linear(8, 4))
    model = nn.Sequential(nn.Linear(8, 8), inner).requires_grad_(False)
    weight = model[0].weight
    x = torch.randn(3, 8)
    before = model(x)
    speed_up(model)
    assert isinstance(model[0], RowLinear)
    assert isinstance(inner[1], RowLinear)
    assert model[0].weight is weight
    assert set(model.state_dict()) == {"0.weight", "0.bias", "1.1.weight", "1.1.bias"}
    torch.testing.assert_close(model(x), before)
    speed_up(model)  # again: the same layers, another table
    torch.testing.assert_close(model(x), before)


def test_other_types_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4)).double()
    speed_up(model)
    assert type(model[0]) is nn.Linear


@needs_packed
def test_without_room_for_copies_nothing_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(4, 4)).requires_grad_(False)

    class Full:
        available = 0

    monkeypatch.setattr(psutil, "virtual_memory", Full)
    chosen = speed_up(model)
    assert {c.form for c in chosen.choices[4, 4].values()} == {"transposed", "plain"}


def test_the_table_as_json_names_shape_rows_and_form() -> None:
    found = table("plain", (4, 8), 0).as_json()
    assert found["threads"] == 1
    assert found["shapes"]["4x8"]["2"] == {"form": "plain", "rows": 2, "us": 0.0}
