"""Which layers an engine or a tool means: the table in code, and the same one in the manual."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3.errors import BadInput
from eagle3.export.layers import ENGINES, TOOLS, Layers, Reading, check_sglang, default

MANUAL = Path(__file__).parents[3] / "docs" / "export.md"


@pytest.mark.parametrize(
    ("engine", "without", "listed"),
    [
        ("vllm", (2, 6, 9), (3, 5, 8)),
        ("llamacpp", (2, 6, 9), (3, 5, 8)),
        ("sglang", (2, 6, 9), (4, 6, 9)),
        ("openvino", (3, 7, 10), (4, 6, 9)),
    ],
)
def test_what_an_engine_captures_of_twelve_layers(
    engine: str, without: Layers, listed: Layers
) -> None:
    reading = ENGINES[engine]
    assert reading.captured(None, 12) == without
    assert reading.captured([3, 5, 8], 12) == listed


@pytest.mark.parametrize(
    ("tool", "listed"),
    [
        ("updraft", (3, 5, 8)),
        ("eagle", (3, 5, 8)),
        ("angelslim", (3, 5, 8)),
        ("speculators", (3, 5, 8)),
        ("specforge", (4, 6, 9)),
        ("modelopt", (4, 6, 9)),
    ],
)
def test_what_a_tool_means(tool: str, listed: Layers) -> None:
    assert TOOLS[tool].captured([3, 5, 8], 12) == listed
    assert TOOLS[tool].captured(None, 12) == (2, 6, 9)


@pytest.mark.parametrize("reading", [*ENGINES.values(), *TOOLS.values()])
@pytest.mark.parametrize("layers", [(2, 6, 9), (1, 5, 8), (3, 7, 10)])
def test_what_is_written_is_read_as_it_was_meant(reading: Reading, layers: Layers) -> None:
    assert reading.captured(reading.listed(layers, 12), 12) == layers


def test_a_list_is_written_only_where_none_means_something_else() -> None:
    assert ENGINES["vllm"].listed((2, 6, 9), 12) is None
    assert ENGINES["sglang"].listed((1, 5, 8), 12) == [0, 4, 7]
    assert ENGINES["openvino"].listed((2, 6, 9), 12) == [1, 5, 8]
    assert ENGINES["openvino"].listed((3, 7, 10), 12) is None


def test_the_default_layers() -> None:
    assert default(12) == (2, 6, 9)
    assert default(33) == (2, 16, 30)


def test_a_family_that_sglang_counts_otherwise_is_refused() -> None:
    check_sglang("deepseek_v3", (2, 6, 9), 12)  # no list is needed
    check_sglang("deepseek_v3", (2, 5, 8), 12)  # its list begins with 1
    check_sglang("llama", (3, 5, 8), 12)
    with pytest.raises(BadInput, match="begins with 1"):
        check_sglang("deepseek_v3", (3, 5, 8), 12)


@pytest.mark.parametrize("name", [*ENGINES, *TOOLS])
def test_the_manual_has_the_same_table(name: str) -> None:
    reading = ENGINES.get(name) or TOOLS[name]
    start = f"| `{name}` | `hs["
    row = next(line for line in MANUAL.read_text().splitlines() if line.startswith(start))
    cells = [cell.strip() for cell in row.strip("|").split(" | ")]
    assert cells[1] == _written(reading.shift)
    assert cells[2] == DEFAULTS[reading.default_shift]
    assert cells[3] == reading.where


DEFAULTS = {
    0: "`hs[2]`, `hs[n // 2]`, `hs[n - 3]`",
    1: "`hs[3]`, `hs[n // 2 + 1]`, `hs[n - 2]`",
}


def _written(shift: int) -> str:
    return "`hs[k]`" if shift == 0 else f"`hs[k + {shift}]`"
