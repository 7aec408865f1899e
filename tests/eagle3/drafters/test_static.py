"""The shape of a static tree, and how it is chosen."""

from __future__ import annotations

import itertools

import pytest
import torch

from eagle3.drafters.static import Layout, best_layout

LAYOUT = Layout(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0)))


def test_nodes_parents_and_lines() -> None:
    assert LAYOUT.parents == [0, 0, 1, 1, 2, 4]
    assert LAYOUT.lines[6] == [0, 1, 4, 6]
    assert LAYOUT.levels == [[1, 2], [3, 4, 5], [6]]
    assert LAYOUT.expanded == [[0], [1, 2], [4]]
    assert (LAYOUT.depth, LAYOUT.width) == (3, 2)
    assert [LAYOUT.nodes(room) for room in range(5)] == [0, 2, 5, 6, 6]


def test_a_tree_of_less_room_is_the_beginning() -> None:
    tree = LAYOUT.tree([10, 11, 12, 13, 14])
    assert tree.parents == [0, 0, 1, 1, 2]
    assert max(tree.depths) == 2
    assert Layout.chain(3).tree([5, 6, 7]).is_chain
    assert Layout(()).tree([]).tokens == []


@pytest.mark.parametrize(
    "paths", [((0,), (1, 0)), ((0, 0), (0,)), ((0,), (0,))], ids=["orphan", "order", "twice"]
)
def test_a_shape_that_is_no_tree_is_refused(paths: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="paths"):
        Layout(paths)


def test_the_best_layout_expects_more_than_any_other() -> None:
    """Against every prefix-closed set of nodes of the same size."""
    accuracy = [[0.6, 0.2, 0.05], [0.5, 0.3, 0.1]]
    every = [(i,) for i in range(3)] + list(itertools.product(range(3), repeat=2))

    def expected(paths: tuple[tuple[int, ...], ...]) -> float:
        value = 0.0
        for path in paths:
            product = 1.0
            for depth, rank in enumerate(path):
                product *= accuracy[depth][rank]
            value += product
        return value

    for size in range(1, 7):
        found = best_layout(torch.tensor(accuracy), size)
        assert len(found.paths) == size
        best = max(
            expected(paths)
            for paths in itertools.combinations(every, size)
            if all(p[:-1] in paths for p in paths if len(p) > 1)
        )
        assert expected(found.paths) == pytest.approx(best)
