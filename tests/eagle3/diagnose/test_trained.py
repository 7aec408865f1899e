"""Faults planted in a draft that has learned: each is named, and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from eagle3 import vocab
from eagle3.diagnose.case import Rendered
from eagle3.diagnose.reading import Reading
from tests.eagle3.diagnose.conftest import Learned
from tests.eagle3.diagnose.lagged import (
    FAMILIAR,
    HIDDEN,
    THETA,
    prompts,
    reordered,
)

pytestmark = pytest.mark.slow  # a draft is trained first

ATTENTION = "midlayer.self_attn."
NORMS = ("midlayer.input_layernorm.weight", "midlayer.hidden_norm.weight")


def swapped(reading: Reading, a: str, b: str) -> Reading:
    return reading.holding(**{a: reading.tensors[b], b: reading.tensors[a]})


def changed(reading: Reading, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Reading:
    return reading.holding(**{name: change(reading.tensors[name])})


def feature_first(reading: Reading) -> Reading:
    for name in ("q_proj", "k_proj", "v_proj"):
        reading = changed(
            reading,
            f"{ATTENTION}{name}.weight",
            lambda w: torch.cat([w[:, HIDDEN:], w[:, :HIDDEN]], 1),
        )
    return reading


def interleaved(reading: Reading) -> Reading:
    """Rows of q and k as Meta's files have them."""
    for name in ("q_proj", "k_proj"):
        reading = changed(
            reading,
            f"{ATTENTION}{name}.weight",
            lambda w: w.view(-1, 2, 8, *w.shape[1:]).transpose(1, 2).flatten(0, 2),
        )
    return reading


def without(reading: Reading, *names: str) -> Reading:
    kept = {name: t for name, t in reading.tensors.items() if name not in names}
    return replace(reading, tensors=kept)


def rope(reading: Reading, **values: object) -> Reading:
    return reading.having(rope_parameters={**reading.config.rope_parameters, **values})


def fewer_words(reading: Reading) -> Reading:
    """A draft vocabulary that lacks every third word."""
    kept = torch.arange(reading.config.draft_vocab_size) % 3 > 0
    ids = vocab.kept_ids(reading.tensors["d2t"])[kept]
    d2t, t2d = vocab.maps(ids, reading.config.vocab_size)
    head = reading.tensors["lm_head.weight"][kept]
    return reading.having(draft_vocab_size=len(ids)).holding(d2t=d2t, t2d=t2d, lm_head__weight=head)


FAULTS: dict[str, tuple[str, Callable[[Reading], Reading]]] = {
    "one layer early": ("captured layers", lambda r: r.having(capture_layers=(1, 3, 4))),
    "one layer late": ("captured layers", lambda r: r.having(capture_layers=(3, 5, 6))),
    "low and mid exchanged in fc": (
        "feature or embedding order",
        lambda r: changed(
            r, "fc.weight", lambda w: torch.cat([w.chunk(3, 1)[i] for i in (2, 0, 1)], 1)
        ),
    ),
    "feature first": ("feature or embedding order", feature_first),
    "rotary base": ("RoPE", lambda r: rope(r, rope_theta=500_000.0)),
    "rotary scaling": ("RoPE", lambda r: rope(r, rope_type="linear", factor=4.0)),
    "rotary rows": ("RoPE", interleaved),
    "length": ("RoPE", lambda r: r.having(max_position_embeddings=12)),
    "heads": (
        "heads",
        lambda r: r.having(num_attention_heads=2, num_key_value_heads=2, head_dim=32),
    ),
    "d2t absolute": ("d2t semantics", lambda r: r.holding(d2t=vocab.kept_ids(r.tensors["d2t"]))),
    "another draft vocabulary": (
        "d2t semantics",
        lambda r: r.holding(d2t=r.tensors["d2t"].roll(1).sort().values - 1),
    ),
    "d2t missing": ("missing tensors", lambda r: without(r, "d2t")),
    "fc missing": ("missing tensors", lambda r: without(r, "fc.weight")),
    "head missing": ("missing tensors", lambda r: without(r, "lm_head.weight")),
    "fc transposed": (
        "tensor shapes",
        lambda r: changed(r, "fc.weight", lambda w: w.T.contiguous()),
    ),
    "o_proj transposed": (
        "tensor shapes",
        lambda r: changed(r, f"{ATTENTION}o_proj.weight", lambda w: w.T.contiguous()),
    ),
    "norms exchanged": ("tensors exchanged", lambda r: swapped(r, *NORMS)),
    "norm and hidden_norm exchanged": (
        "tensors exchanged",
        lambda r: swapped(r, "norm.weight", NORMS[1]),
    ),
    "key and value exchanged": (
        "tensors exchanged",
        lambda r: swapped(r, f"{ATTENTION}k_proj.weight", f"{ATTENTION}v_proj.weight"),
    ),
    "not a number": (
        "broken values",
        lambda r: changed(r, "midlayer.mlp.down_proj.weight", lambda w: w / 0),
    ),
    "few words": ("draft vocabulary coverage", fewer_words),
}


def test_a_healthy_draft_has_nothing_wrong(learned: Learned) -> None:
    found = learned.diagnose(learned.reading)
    assert found.verdict == "nothing wrong"
    assert found.causes == []
    assert found.exit_code == 0
    assert found.tau > 3


@pytest.mark.parametrize("fault", FAULTS)
def test_the_planted_fault_is_named(learned: Learned, fault: str) -> None:
    cause, plant = FAULTS[fault]
    found = learned.diagnose(plant(learned.reading))
    assert found.causes == [cause], found.said
    assert found.verdict == "cause found"
    assert found.exit_code == 1


@pytest.mark.parametrize("fault", ["one layer early", "d2t absolute", "feature first", "heads"])
def test_what_is_named_restores_acceptance(learned: Learned, fault: str) -> None:
    healthy = learned.case.answers.measure(learned.reading).tau
    found = learned.diagnose(FAULTS[fault][1](learned.reading))
    assert found.tau < healthy - 0.5
    assert found.corrected_tau == pytest.approx(healthy)


def test_two_faults_are_both_named(learned: Learned) -> None:
    both = rope(learned.reading.having(capture_layers=(1, 3, 4)), rope_theta=500_000.0)
    found = learned.diagnose(both)
    assert sorted(found.causes) == ["RoPE", "captured layers"]
    assert found.corrected_tau > 3.5


@pytest.mark.parametrize("part", ["norm", "head"])
def test_the_targets_norm_or_head_in_place_of_the_drafts(learned: Learned, part: str) -> None:
    target = learned.lagged.target
    if part == "norm":
        planted = learned.reading.holding(norm__weight=target.body.norm.weight.detach())
    else:
        first = target.head_weight()[: learned.reading.config.draft_vocab_size]
        planted = learned.reading.holding(lm_head__weight=first.clone())
    found = learned.diagnose(planted, expected=3.0)
    assert found.causes == ["head or norm of the target"], found.said


def test_another_target_is_named_where_it_can_be_tried(learned: Learned) -> None:
    """A target that writes the same text, with its features in another order."""
    other = reordered(learned.lagged)
    served = learned.case.ask(other.target, learned.case.prompts)
    case = replace(learned.case, target=other.target, answers=served)
    found = replace(learned, case=case).diagnose(learned.reading, others=(learned.lagged.folder,))
    assert found.causes == ["wrong target or revision"], found.said
    assert found.corrected_tau > 3
    blind = replace(learned, case=case).diagnose(learned.reading)
    assert blind.verdict == "low, no cause found"
    assert blind.exit_code == 6
    assert "wrong target or revision" in blind.not_tried
    assert {"captured layers", "RoPE", "d2t semantics"} <= set(blind.ruled_out)


def test_another_target_is_named_by_what_a_bundle_says(learned: Learned) -> None:
    other = reordered(learned.lagged)
    served = learned.case.ask(other.target, learned.case.prompts)
    case = replace(learned.case, target=other.target, answers=served)
    record = {"weights_sha256": "0" * 64, "resolved": "org/name@abc"}
    found = replace(learned, case=case).diagnose(
        learned.reading, record=record, folder=learned.lagged.folder
    )
    assert found.causes == ["wrong target or revision"]
    assert "org/name@abc" in found.said


def test_another_domain_is_named(learned: Learned, strange: list[list[int]]) -> None:
    served = learned.case.ask(learned.lagged.target, strange)
    found = learned.diagnose(
        learned.reading, answers=served, prompts=strange, heldout=learned.case.prompts
    )
    assert found.causes == ["domain shift"], found.said


def test_another_template_is_named(learned: Learned, strange: list[list[int]]) -> None:
    """Prompts that a wrong template ends in words that the draft was never taught."""
    served = learned.case.ask(learned.lagged.target, strange)
    right = (Rendered("by the draft's template", learned.case.prompts),)
    found = learned.diagnose(learned.reading, answers=served, prompts=strange, renderings=right)
    assert found.causes == ["tokenizer or template"], found.said


def test_a_fault_is_told_from_another_domain(learned: Learned) -> None:
    """Held-out prompts do no better, so the domain is not it."""
    found = learned.diagnose(
        learned.reading.having(capture_layers=(1, 3, 4)), heldout=prompts(FAMILIAR, 8, seed=12)
    )
    assert found.causes == ["captured layers"]


def test_a_target_with_the_rotary_base_of_the_draft_is_no_fault(learned: Learned) -> None:
    assert learned.reading.config.rope_parameters["rope_theta"] == THETA
    found = learned.diagnose(learned.reading)
    assert "RoPE" in found.ruled_out
