"""Every family of targets: this engine, cached, rolled back, batched and with a draft, against
transformers' own forward and `generate`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GenerationConfig,
)

from eagle3.data.architecture import check_structure
from eagle3.data.batch import Sequence, decode_batch
from eagle3.data.checks import check_config, check_files
from eagle3.data.probe import probe
from eagle3.decode.engine import Engine
from eagle3.decode.linear import speed_up
from eagle3.decode.request import Request
from eagle3.decode.tree import Shape
from eagle3.draft import Draft, DraftConfig
from eagle3.drafters.eagle3 import Eagle3
from eagle3.drafters.plain import Plain
from eagle3.target import Target
from tests.families import DECODED, PROBED, SIZES, VOCAB, WINDOW, Family, build, randomised

torch.set_num_threads(1)

LAYERS = (2, 4, 5)
PROMPT, NEW = 20, 16
TOLERANCE = 1e-4
"""Relative to the largest value: float32 over 8 layers with large random weights."""


@dataclass
class Built:
    family: Family
    folder: Path
    target: Target
    stock: Any
    known: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    def greedy(self, prompt: list[int]) -> list[int]:
        """The `NEW` tokens that transformers generates; once for each prompt."""
        key = tuple(prompt)
        if key not in self.known:
            self.known[key] = greedy(self.stock, prompt, NEW)
        return self.known[key]


@pytest.fixture(scope="module", params=DECODED, ids=str)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = build(request.param, tmp_path_factory.mktemp("family"))
    target = Target.load(folder)
    speed_up(target.model)
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return Built(request.param, folder, target, stock)


def ids(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, VOCAB, (length,), generator=generator).tolist()


def resolve_checks(folder: Path) -> Any:
    config = check_config(folder)
    assert check_structure(config, None) == LAYERS
    check_files(folder, config)
    probe(folder, LAYERS)
    return config.get_text_config()


def near(ours: Tensor, theirs: Tensor) -> None:
    error = (ours - theirs).abs().max() / theirs.abs().max()
    assert error < TOLERANCE, error


def greedy(stock: Any, prompt: list[int], new: int) -> list[int]:
    config = GenerationConfig(do_sample=False, max_new_tokens=new, pad_token_id=0)
    stock.generation_config = config
    ids_1P = torch.tensor([prompt])
    out = stock.generate(ids_1P, attention_mask=torch.ones_like(ids_1P), generation_config=config)
    found: list[int] = out[0, len(prompt) :].tolist()
    return found


def test_resolve_accepts_it_and_a_draft_fits(built: Built) -> None:
    text = resolve_checks(built.folder)
    draft = DraftConfig.for_target(text, LAYERS, VOCAB)
    heads = (draft.num_attention_heads, draft.num_key_value_heads, draft.head_dim)
    assert heads == built.family.draft_heads
    assert draft.intermediate_size == built.family.draft_width
    assert draft.rope_parameters["rope_theta"] > 1


@pytest.mark.parametrize("family", PROBED, ids=str)
def test_resolve_accepts_further_families(family: Family, tmp_path: Path) -> None:
    resolve_checks(build(family, tmp_path))


def test_features_and_logits_are_those_of_transformers(built: Built) -> None:
    ids_BL = torch.tensor([ids(40), ids(40, seed=1)])
    with torch.inference_mode():
        stock = built.stock(ids_BL, output_hidden_states=True, use_cache=False)
    hidden, features = built.target.forward(
        ids_BL, built.target.new_cache(40, batch=2), capture=True
    )
    assert features is not None
    near(features, torch.cat([stock.hidden_states[i] for i in LAYERS], -1))
    near(hidden, stock.hidden_states[-1])
    near(built.target.logits(hidden), stock.logits)


@torch.inference_mode()
def test_what_is_kept_of_a_tree_and_after_a_rollback_is_as_if_nothing_else_had_been(
    built: Built,
) -> None:
    whole = ids(PROMPT + 12)
    full, _ = built.target.forward(torch.tensor([whole]), built.target.new_cache(len(whole)))
    cache = built.target.new_cache(len(whole) + 8)
    built.target.forward(torch.tensor([whole[:PROMPT]]), cache)
    cache.advance(PROMPT)
    first, second, third = whole[PROMPT : PROMPT + 3]
    own = torch.tensor(  # the tokens of the text at 0, 2 and 4; others beside them
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 1]]
    ).bool()
    tree, _ = built.target.forward(
        torch.tensor([[first, 7, second, 9, third]]),
        cache,
        positions_BL=PROMPT + torch.tensor([[0, 1, 1, 2, 2]]),
        mask=torch.cat([torch.ones(5, PROMPT, dtype=torch.bool), own], 1)[None, None],
    )
    near(tree[0, [0, 2, 4]], full[0, PROMPT : PROMPT + 3])
    cache.keep([0, 2, 4])
    stands = cache.length
    built.target.forward(torch.tensor([[5, 6, 7]]), cache)
    cache.advance(3)
    cache.rollback(stands)
    for at in range(stands, len(whole)):
        row, _ = built.target.forward(torch.tensor([[whole[at]]]), cache)
        cache.advance(1)
        near(row[0], full[0, at : at + 1])


@pytest.mark.parametrize("shape", [Shape(depth=3), Shape(depth=3, top_k=4, total=12)], ids=str)
def test_greedy_output_with_a_draft_is_that_of_generate(built: Built, shape: Shape) -> None:
    """A random draft over the commonest tokens: a few of its guesses are right."""
    prompts = [ids(PROMPT), ids(PROMPT)[:10] + ids(3, seed=1)]
    expected = [built.greedy(prompt) for prompt in prompts]
    assert PROMPT > WINDOW
    kept = sorted(token for token, _ in Counter(expected[0]).most_common(6))
    torch.manual_seed(0)
    config = DraftConfig.for_target(built.target.config, LAYERS, len(kept))
    draft = Draft(config, built.target.embed.weight.detach())
    draft.set_vocab(torch.tensor(kept))
    for slots in (1, 2):
        engine = Engine(built.target, Eagle3(draft.eval(), shape), slots)
        outs = engine.generate(Request(prompt, NEW) for prompt in prompts)
        assert [out.tokens for out in outs] == expected
        if shape.top_k > 1:
            assert sum(outs[0].accepted) > 0


def test_a_batch_of_prompts_of_any_length_is_answered_like_generate(built: Built) -> None:
    prompts = [ids(PROMPT), ids(PROMPT)[:10] + ids(3, seed=1)]  # they begin alike
    sequences = [Sequence(prompt, NEW) for prompt in prompts]
    decode_batch(built.target, sequences, frozenset())
    assert [s.answer for s in sequences] == [built.greedy(p) for p in prompts]


def test_the_text_part_of_an_image_model_is_a_target(tmp_path: Path) -> None:
    gemma = next(f for f in DECODED if f.model_type == "gemma3_text")
    config = Gemma3Config(
        text_config=SIZES | gemma.config,
        vision_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
        mm_tokens_per_image=4,
        image_token_index=VOCAB - 1,
        boi_token_index=VOCAB - 2,
        eoi_token_index=VOCAB - 3,
    )
    randomised(Gemma3ForConditionalGeneration(config)).save_pretrained(tmp_path)
    text = resolve_checks(tmp_path)
    assert DraftConfig.for_target(text, LAYERS, VOCAB).hidden_size == 32
    target, prompt = Target.load(tmp_path), ids(PROMPT)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    [out] = Engine(target, Plain()).generate([Request(prompt, 8)])
    assert out.tokens == greedy(stock, prompt, 8)


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt_oss", "deepseek_v3"])
def test_half_precision_is_that_of_transformers_but_for_rounding(
    model_type: str, tmp_path: Path
) -> None:
    """The type in which a GPU reads a target."""
    folder = build(next(f for f in DECODED if f.model_type == model_type), tmp_path)
    ids_BL = torch.tensor([ids(30)])
    stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        exact = stock(ids_BL).logits
        theirs = stock.bfloat16()(ids_BL).logits
    target = Target.load(folder, torch.bfloat16)
    assert target.dtype == torch.bfloat16
    ours = target.logits(target.forward(ids_BL, target.new_cache(30))[0])
    assert ours.dtype == torch.bfloat16
    assert (ours - exact).norm() < 1.5 * (theirs - exact).norm() + 1e-6


def test_a_draft_reads_raw_embeddings_also_where_the_target_scales_them(built: Built) -> None:
    """As serving engines do, which share the matrix and not the factor."""
    prompt = torch.tensor(ids(5))
    draft = Draft(DraftConfig.for_target(built.target.config, LAYERS, 4), built.target.embed.weight)
    rows = draft.embed(prompt)
    assert torch.equal(rows, built.stock.get_input_embeddings().weight[prompt])
    scale = 32**0.5 if built.family.model_type.startswith("gemma") else 1.0
    near(rows * scale, built.stock(prompt[None], output_hidden_states=True).hidden_states[0][0])


def test_the_manual_names_every_family_and_how_it_is_tested() -> None:
    text = (Path(__file__).parents[2] / "docs" / "targets.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| `(\w+)` \| (decoded|compared) \|", text, re.MULTILINE)
    assert rows == [
        (family.name, family.model_type, how)
        for how, families in (("decoded", DECODED), ("compared", PROBED))
        for family in families
    ]
