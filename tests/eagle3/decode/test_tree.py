"""Trees: order, parents, masks, and what the draft is asked to do."""

from __future__ import annotations

import torch

from eagle3.decode.tree import EMPTY, Shape, Tree, best
from eagle3.draft import DraftCache
from eagle3.drafters.grow import grow
from tests.golden import golden_draft, random_target

#   0 ── 1 ── 3
#   │    └─── 4
#   └─── 2
SMALL = Tree(tokens=[10, 11, 12, 13], parents=[0, 0, 1, 1])


def test_children_depths_and_shape() -> None:
    assert SMALL.children == [[1, 2], [3, 4], [], [], []]
    assert SMALL.depths == [0, 1, 1, 2, 2]
    assert not SMALL.is_chain
    assert Tree([5, 6, 7], [0, 1, 2]).is_chain
    assert EMPTY.is_chain
    assert EMPTY.children == [[]]


def test_a_node_sees_its_ancestors_and_itself() -> None:
    assert SMALL.seen.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 0, 1],
    ]


def test_best_keeps_the_parent_of_a_child_with_the_same_value() -> None:
    tree = best([1, 2, 3, 4], [0, 0, 1, 3], [-0.5, -0.1, -0.5, -0.5], total=3)
    assert tree == Tree([2, 1, 3], [0, 0, 2])


def test_best_orders_by_value_and_renames_parents() -> None:
    tree = best([1, 2, 3, 4, 5], [0, 0, 2, 2, 1], [-3.0, -0.5, -0.75, -2.0, -4.0], total=4)
    assert tree == Tree([2, 3, 4, 1], [0, 1, 1, 0])


def test_growing_a_tree_is_drafting_each_path_by_itself() -> None:
    """Values and tokens of a tree equal those of separate chains through the same nodes."""
    target = random_target()
    draft = golden_draft(target, torch.randn(48, 48, generator=torch.Generator().manual_seed(3)))
    torch.nn.init.normal_(draft.midlayer.self_attn.v_proj.weight, std=0.3)  # attention now matters
    torch.nn.init.normal_(draft.midlayer.self_attn.q_proj.weight, std=0.05)
    cache = DraftCache(64)
    with torch.inference_mode():
        outs = draft(torch.arange(4), torch.randn(4, 64), torch.arange(4), cache)
        cache.advance(4)
        [tree] = grow(draft, outs[-1:], cache, Shape(depth=3, top_k=3, total=9))
        assert cache.length == 4
        for node in range(1, 10):
            path: list[int] = []
            at = node
            while at:
                path.insert(0, tree.tokens[at - 1])
                at = tree.parents[at - 1]
            out = outs[-1:]
            for depth, token in enumerate(path):
                options = draft.target_ids(draft.logits(out)[0].topk(3).indices).tolist()
                assert token in options
                out = draft(torch.tensor([token]), out, torch.tensor([4 + depth]), cache)
                cache.advance(1)
            cache.rollback(4)


def test_a_chain_is_a_tree_of_width_one() -> None:
    target = random_target()
    draft = golden_draft(target, torch.randn(48, 48, generator=torch.Generator().manual_seed(3)))
    cache = DraftCache(64)
    with torch.inference_mode():
        outs = draft(torch.arange(4), torch.randn(4, 64), torch.arange(4), cache)
        cache.advance(4)
        [tree] = grow(draft, outs[-1:], cache, Shape(depth=4))
    assert tree.is_chain
    assert len(tree.tokens) == 4
