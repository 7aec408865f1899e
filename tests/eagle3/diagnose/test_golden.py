"""Faults planted in golden checkpoints, whose acceptance is known in advance."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle3.diagnose.case import Case
from eagle3.diagnose.diagnosis import Diagnosis, diagnose
from eagle3.diagnose.evidence import Answers, ask
from eagle3.diagnose.reading import Reading, read
from eagle3.target import Target
from tests.eagle3.engines.checkpoints import CAPTURE, LAYERS, build

DEPTH, TOKENS = 3, 13


def answers(target: Target, asked: list[list[int]]) -> Answers:
    return ask(target, asked, TOKENS, range(LAYERS + 1), DEPTH)


def golden(folder: Path, slot: int | None = None) -> Case:
    """The case of a golden checkpoint, on prompts whose successors the draft knows."""
    made = build(folder, slot=slot)
    target = Target.load(made.target)
    reading, raw = read(made.draft, target)
    asked = [made.order[at : at + 4] for at in range(6)]
    return Case(target, reading, raw, answers(target, asked), answers, asked)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return golden(tmp_path_factory.mktemp("golden"))


def planted(case: Case, reading: Reading) -> Diagnosis:
    return diagnose(replace(case, reading=reading))


def test_all_is_accepted_and_nothing_wrong(plain: Case) -> None:
    found = diagnose(plain)
    assert found.by_position == [1, 1, 1]
    assert found.verdict == "nothing wrong"


@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_layer_early_or_late_at_each_slot(tmp_path: Path, slot: int, by: int) -> None:
    case = golden(tmp_path, slot)
    wrong = [*CAPTURE]
    wrong[slot] += by
    found = planted(case, case.reading.having(capture_layers=tuple(wrong)))
    assert found.causes == ["captured layers"], found.said
    assert found.tau < 1.1
    assert found.corrected_tau > 3


def test_output_fed_back_after_the_norm(plain: Case) -> None:
    found = planted(plain, replace(plain.reading, norms=frozenset({"norm_output"})))
    assert found.causes == ["feedback and norms"], found.said
    assert found.by_position[0] == 1
    assert found.by_position[1] < 0.5


def test_features_too_large_for_half_precision(plain: Case) -> None:
    """The golden pair with its residual stream a million times as large: beyond float16."""
    large = 1e6
    found = [
        replace(one, states={k: large * state for k, state in one.states.items()})
        for one in plain.answers.found
    ]
    fc = plain.reading.tensors["fc.weight"] / large
    in_half = replace(plain.reading.holding(fc__weight=fc), dtype=torch.float16)
    case = replace(plain, answers=replace(plain.answers, found=found), reading=in_half)
    said = diagnose(case)
    assert said.causes == ["dtype overflow"], said.said
    assert said.corrected_tau > 3


def test_an_embedding_of_its_own(plain: Case) -> None:
    """A draft trained with other embeddings than the target's, which its file brings along."""
    generator = torch.Generator().manual_seed(1)
    hidden = plain.target.hidden_size
    turn = torch.linalg.qr(torch.randn(hidden, hidden, generator=generator))[0]
    own = plain.answers.embed_VH @ turn
    tensors = {"embed_tokens.weight": own}
    for name in ("q_proj", "k_proj", "v_proj"):
        name = f"midlayer.self_attn.{name}.weight"
        weight = plain.reading.tensors[name].clone()
        weight[:, :hidden] = weight[:, :hidden] @ turn
        tensors[name] = weight
    found = planted(plain, plain.reading.holding(**tensors))
    assert found.causes == ["embedding"], found.said


@pytest.mark.parametrize("name", ["midlayer.hidden_norm.weight", "d2t"])
def test_a_tensor_that_the_file_lacks(plain: Case, name: str) -> None:
    """Named although a norm of ones, which engines put in its place, does as well here."""
    tensors = {key: t for key, t in plain.reading.tensors.items() if key != name}
    found = planted(plain, replace(plain.reading, tensors=tensors))
    assert found.causes == ["missing tensors"]
    assert name in found.said


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "sglang serve --speculative-algorithm EAGLE --speculative-draft-model-path D",
            "SGLang",
        ),
        ("sglang serve --speculative-algorithm=NEXTN", "SGLang"),
        ("""vllm serve T --speculative-config '{"method": "eagle", "model": "D"}'""", "vLLM"),
        ("""vllm serve T --speculative-config '{"method": "eagle3", "model": "D"}'""", "num_spec"),
        ("llama-server -m t.gguf --model-draft d.gguf", "llama.cpp"),
    ],
)
def test_an_engine_told_another_method(plain: Case, line: str, expected: str) -> None:
    found = diagnose(replace(plain, flags=line))
    assert found.causes == ["engine flags"]
    assert expected in found.said


@pytest.mark.parametrize(
    "line",
    [
        "sglang serve --speculative-algorithm EAGLE3 --speculative-draft-model-path D",
        """vllm serve T --speculative-config '{"method":"eagle3","num_speculative_tokens":3}'""",
        "llama-server --model-draft d.gguf --spec-type draft-eagle3",
        "vllm serve T",
    ],
)
def test_an_engine_told_the_right_method(plain: Case, line: str) -> None:
    assert diagnose(replace(plain, flags=line)).verdict == "nothing wrong"


def test_an_architecture_of_eagle_1(plain: Case) -> None:
    found = diagnose(replace(plain, raw={"architectures": ["LlamaForCausalLMEagle"]}))
    assert found.causes == ["engine flags"]


def test_names_of_other_tools_are_read(plain: Case, tmp_path: Path) -> None:
    """`layers.0.` and `model.`, and a config without a rotary base, which means 10000."""
    folder = tmp_path / "draft"
    folder.mkdir()
    tensors = {
        f"model.{name.replace('midlayer.', 'layers.0.')}": t.contiguous()
        for name, t in plain.reading.tensors.items()
    }
    save_file(tensors, folder / "model.safetensors")
    raw = {k: v for k, v in plain.raw.items() if k not in ("rope_theta", "rope_scaling")}
    (folder / "config.json").write_text(json.dumps(raw))
    reading, _ = read(folder, plain.target)
    assert plain.answers.measure(reading).total.by_position == [1, 1, 1]
    assert reading.config.rope_parameters["rope_theta"] == 10_000


def test_sglang_counts_its_layers_otherwise(tmp_path: Path) -> None:
    """The same list, where vLLM looks and where SGLang looks: it is right for one of the two."""
    case = golden(tmp_path, slot=1)
    raw = json.loads((tmp_path / "draft" / "config.json").read_text())
    listed = {"eagle_aux_hidden_state_layer_ids": list(CAPTURE)}
    raw |= {**listed, "eagle_config": listed}
    (tmp_path / "draft" / "config.json").write_text(json.dumps(raw))
    for engine, causes in (("vllm", []), ("sglang", ["captured layers"])):
        reading, _ = read(tmp_path / "draft", case.target, engine)
        assert planted(case, reading).causes == causes
