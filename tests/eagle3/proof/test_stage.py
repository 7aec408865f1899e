"""The stage tells equal, tied and different outputs apart, and resumes by prompt."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3.bench.prompts import HeldOut
from eagle3.decode.engine import Engine
from eagle3.decode.tree import Shape
from eagle3.drafters.eagle3 import Eagle3
from eagle3.drafters.plain import Plain
from eagle3.errors import BadInput, Stopped
from eagle3.proof import prove, stage
from eagle3.proof.greedy import Difference, PromptProof, prove_prompt, verdict
from eagle3.proof.reference import Reference
from eagle3.target import Target
from tests.golden import CAPTURE, Golden, golden_draft, golden_target, successor_scores
from tests.golden_run import context, write_golden_run

SETTINGS = {"prove": {"prompts": 4, "max_new_tokens": 12}}


@pytest.fixture
def golden() -> Golden:
    return golden_target()


def run_with(golden: Golden, run: Path, shift: int = 0) -> Path:
    draft = golden_draft(golden.target, successor_scores(golden.perm, shift))
    write_golden_run(run, golden, draft)
    return run


@pytest.mark.parametrize("shift", [0, 5])
def test_a_right_and_a_wrong_draft_are_both_lossless(
    golden: Golden, tmp_path: Path, shift: int
) -> None:
    ctx, _ = context(run_with(golden, tmp_path, shift), "prove", **SETTINGS)
    prove(ctx)
    certificate = json.loads((ctx.out / "certificate.json").read_text())
    assert ctx.summary == {
        "verdict": "lossless",
        "prompts": 4,
        "tokens": 48,
        "mismatches": 0,
        "near_ties": 0,
        "dtype": "float32",
    }
    facts = json.loads((tmp_path / "resolve" / "target.json").read_text())
    assert certificate["target"] == {
        name: value for name, value in facts.items() if name.endswith(("resolved", "sha256"))
    }
    assert {len(h) for h in certificate["draft"].values()} == {64}
    assert [p["verdict"] for p in certificate["by_prompt"]] == ["equal"] * 4
    assert len({p["prompt_sha256"] for p in certificate["by_prompt"]}) == 4
    assert {p["rounds"] for p in certificate["by_prompt"]} == {11 if shift else 3}


def test_proven_prompts_are_not_decoded_again(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with(golden, tmp_path)
    ctx, _ = context(run, "prove", **SETTINGS)
    stops = iter([False, False, True])
    monkeypatch.setattr(ctx.stop, "is_set", lambda: next(stops))
    with pytest.raises(Stopped, match="proven prompts are kept"):
        prove(ctx)
    decoded = []

    def counted(*args: object) -> PromptProof:
        decoded.append(args[2])
        return prove_prompt(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(stage, "prove_prompt", counted)
    again, stream = context(run, "prove", **SETTINGS)
    prove(again)
    assert len(decoded) == 2
    assert again.summary["prompts"] == 4
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["done"] for line in lines if line["kind"] == "progress"] == [2, 3, 4]


def test_another_output_is_a_mismatch_and_a_verdict(
    golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with(golden, tmp_path)
    changed = copy.deepcopy(golden.target.model)
    with torch.no_grad():
        changed.lm_head.weight.copy_(changed.lm_head.weight.roll(1, 0))
    monkeypatch.setattr(stage, "open_target", lambda _, exact: Target(changed, CAPTURE))
    ctx, stream = context(run, "prove", **SETTINGS)
    prove(ctx)
    assert ctx.summary["verdict"] == "not_lossless"
    assert ctx.summary["mismatches"] == 4
    difference = json.loads((ctx.out / "certificate.json").read_text())["by_prompt"][0]["mismatch"]
    assert difference["position"] == 0
    assert difference["margin"] == pytest.approx(20.0, rel=1e-3)
    assert "not lossless: 4 of 4 prompts differ" in stream.getvalue()


def test_a_near_tie_passes_and_the_rest_is_compared_along_our_tokens(
    golden: Golden, tmp_path: Path
) -> None:
    """After token 7 a twin's logit lies 4e-6 below the best; our engine is made to take it."""
    perm, head = golden.perm, golden.target.model.lm_head.weight
    twin = perm[perm[perm[perm[7]]]]
    own = head[twin].clone()
    with torch.no_grad():
        head[twin] = own + head[perm[7]] * (1 - 2e-7)
    write_golden_run(tmp_path, golden, golden_draft(golden.target, successor_scores(perm)))
    ours = copy.deepcopy(golden.target.model)
    with torch.no_grad():
        ours.lm_head.weight[twin] = own + head[perm[7]] * 1.001
    target = Target(ours, CAPTURE)
    engine = Engine(target, Eagle3(golden_draft(target, successor_scores(perm)), Shape(3)))
    reference = Reference(tmp_path / "target", frozenset())
    start = perm.index(perm.index(7))
    result = prove_prompt(engine, reference, HeldOut("p", [start]), 12)
    assert result.verdict == "near_tie"
    assert result.mismatch is None
    assert len(result.near_ties) == 1
    tie = result.near_ties[0]
    assert (tie.position, tie.with_draft, tie.reference) == (2, twin, perm[7])
    assert tie.margin is not None
    assert 0 < tie.margin < 1e-5


def test_an_output_that_ends_too_early_is_a_mismatch(golden: Golden, tmp_path: Path) -> None:
    run_with(golden, tmp_path)
    eos = golden.chain(3, 4)[-1]
    golden.target.model.generation_config.eos_token_id = eos
    engine = Engine(golden.target, Plain())
    result = prove_prompt(engine, Reference(tmp_path / "target", frozenset()), HeldOut("p", [3]), 8)
    assert result.mismatch is not None
    assert (result.mismatch.position, result.mismatch.with_draft) == (4, None)
    agreed = prove_prompt(
        engine, Reference(tmp_path / "target", frozenset({eos})), HeldOut("p", [3]), 8
    )
    assert (agreed.verdict, agreed.new_tokens) == ("equal", 4)


@pytest.mark.parametrize(
    ("tokens", "ties", "expected"),
    [(1000, 1, "lossless"), (1000, 2, "not_lossless"), (1001, 2, "lossless")],
)
def test_near_ties_are_rationed(tokens: int, ties: int, expected: str) -> None:
    tie = Difference(position=0, with_draft=1, reference=2, margin=1e-7, allowed=1e-5)
    found = PromptProof(
        id="p",
        prompt_sha256="0",
        prompt_tokens=1,
        new_tokens=tokens,
        rounds=1,
        verdict="near_tie",
        near_ties=[tie] * ties,
        mismatch=None,
    )
    assert verdict([found]) == expected


def test_without_held_out_prompts_there_is_nothing_to_prove(golden: Golden, tmp_path: Path) -> None:
    run = run_with(golden, tmp_path)
    path = run / "regenerate" / "responses.jsonl"
    path.write_text(path.read_text().replace("heldout", "train"))
    ctx, _ = context(run, "prove", **SETTINGS)
    with pytest.raises(BadInput, match="no held-out prompts"):
        prove(ctx)


def test_a_target_that_has_moved_on_is_not_proven(golden: Golden, tmp_path: Path) -> None:
    run = run_with(golden, tmp_path)
    before = json.loads((run / "resolve" / "target.json").read_text())["weights_sha256"]
    golden_target(seed=1).target.model.save_pretrained(run / "target")
    ctx, _ = context(run, "prove", **SETTINGS)
    with pytest.raises(BadInput, match=f"weights_sha256 was {before} and is [0-9a-f]{{64}}$"):
        prove(ctx)
    assert list(ctx.out.iterdir()) == []


def test_a_draft_that_is_not_the_target_s_is_not_proven(golden: Golden, tmp_path: Path) -> None:
    run = run_with(golden, tmp_path)
    folder = run / "export" / "draft"
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")

    def refused(said: str) -> None:
        ctx, _ = context(run, "prove", **SETTINGS)
        with pytest.raises(BadInput, match=said) as error:
            prove(ctx)
        assert str(error.value).startswith("the exported draft: ")
        assert "eagle3 run" in error.value.hint

    def with_config(**other: object) -> None:
        (folder / "config.json").write_text(json.dumps(config | other))

    with_config(vocab_size=96)
    refused("vocabulary 96 where this target and its features have 48")
    with_config(eagle_aux_hidden_state_layer_ids=[0, 1, 1])
    refused(r"captured layers \(0, 1, 1\) where .* have \(0, 1, 2\)")
    with_config()
    save_file({**tensors, "extra": torch.zeros(1)}, folder / "model.safetensors")
    refused("extra is not part of the layout")
    save_file({k: t for k, t in tensors.items() if k != "fc.weight"}, folder / "model.safetensors")
    refused("fc.weight is missing")
    save_file({**tensors, "norm.weight": torch.zeros(8)}, folder / "model.safetensors")
    refused(r"norm.weight is \(8,\), expected \(64,\)")
    (folder / "model.safetensors").write_bytes(b"damaged")
    refused("cannot be read")
    (folder / "model.safetensors").unlink()
    refused("does not exist")
    (folder / "config.json").write_text("{}")
    refused("lacks 'num_attention_heads'")
