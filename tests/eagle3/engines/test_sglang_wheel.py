"""What SGLang 0.5.23 makes of our command line and of our drafts, by the code of its own wheel.

It runs on GPUs alone, so its parser and the functions that read a draft are taken out of the
wheel, which is fetched without its dependencies and kept.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig

from eagle3.draft import Draft, DraftConfig
from eagle3.engines.engine import Settings
from eagle3.engines.environments import engines_root
from eagle3.engines.known import TESTED
from eagle3.engines.pair import target_config
from eagle3.engines.sglang import arguments
from eagle3.export import official
from tests.eagle3.engines import sglang_parser
from tests.eagle3.engines.checkpoints import CAPTURE, LAYERS, Checkpoint, build

pytestmark = pytest.mark.slow  # the wheel is 39 MB

VERSION = TESTED["sglang"][1]
PLUS_ONE = ("llama", "qwen2", "qwen3", "gemma3_causal", "gpt_oss")


@pytest.fixture(scope="module")
def wheel() -> Path:
    """The unpacked wheel, and msgspec, by which it declares its arguments."""
    folder = engines_root() / f"sglang-{VERSION}-wheel-py3{sys.version_info.minor}"
    if not (folder / "done").is_file():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
        wanted = [f"sglang=={VERSION}", "msgspec"]
        subprocess.run([*pip, "--target", str(folder), *wanted], check=True)
        (folder / "done").touch()
    return folder


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return build(tmp_path_factory.mktemp("golden"))


def parsed(wheel: Path, arguments: list[str]) -> Any:
    """What its parser makes of a command line; an unknown flag or value is an error."""
    command = [sys.executable, sglang_parser.__file__, str(wheel), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(**json.loads(done.stdout))


def function(wheel: Path, module: str, name: str, **names: Any) -> Any:
    """A function or method of SGLang's source, with these names about it."""
    source = (wheel / "sglang" / "srt" / f"{module}.py").read_text()
    found: list[ast.stmt] = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    made: dict[str, Any] = {"Optional": Optional, "Iterable": Iterable, "torch": torch, **names}
    made |= {"List": list, "Tuple": tuple}
    exec(compile(ast.Module(found[-1:], []), module, "exec"), made)  # noqa: S102
    return made[name]


def test_our_flags_are_its_own(wheel: Path, golden: Checkpoint) -> None:
    settings = Settings(draft_tokens=3, dtype="bfloat16", context=256, slots=8, memory_gib=0.5)
    config = target_config(golden.target)
    module, *flags = arguments(golden.target, golden.draft, settings, 8123, config)[1:]
    assert (wheel / Path(*module.split("."))).with_suffix(".py").is_file()
    args = parsed(wheel, flags)
    assert (args.model_path, args.served_model_name) == (str(golden.target), "target")
    assert (args.host, args.port, args.dtype) == ("127.0.0.1", 8123, "bfloat16")
    assert (args.context_length, args.max_running_requests) == (256, 8)
    assert args.max_total_tokens == int(0.5 * 2**30 / (12 * 2 * 2 * 32 * 2))
    assert args.disable_radix_cache
    assert args.speculative_algorithm == "EAGLE3"
    assert args.speculative_draft_model_path == str(golden.draft)
    shape = (args.speculative_num_steps, args.speculative_eagle_topk)
    assert (*shape, args.speculative_num_draft_tokens) == (3, 1, 4)


def test_an_unknown_flag_would_be_found(wheel: Path) -> None:
    with pytest.raises(AssertionError, match="unrecognized arguments: --speculative-depth"):
        parsed(wheel, ["--model-path", "x", "--speculative-depth", "3"])


def test_it_lands_every_tensor_of_a_draft(wheel: Path, golden: Checkpoint) -> None:
    landed: dict[str, list[Any]] = {}

    def parameter(name: str) -> tuple[str, Any]:
        def load(_: Any, weight: torch.Tensor, shard: Any = None) -> None:
            landed.setdefault(name, []).append(shard)

        return name, SimpleNamespace(weight_loader=load)

    layer = "model.layers.0."
    parameters = [f"{layer}self_attn.{n}_proj.weight" for n in ("qkv", "o")]
    parameters += [f"{layer}mlp.{n}_proj.weight" for n in ("gate_up", "down")]
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    parameters += [f"{layer}{norm}.weight" for norm in norms]
    parameters += ["model.fc.weight", "model.norm.weight", "lm_head.weight"]
    model = SimpleNamespace(named_parameters=lambda: map(parameter, parameters), hot_token_id=None)
    load = function(wheel, "models/llama_eagle3", "load_weights", default_weight_loader=None)
    tensors = load_file(golden.draft / official.WEIGHTS)
    load(model, list(tensors.items()))
    assert landed.keys() == set(parameters)
    assert set(landed[f"{layer}self_attn.qkv_proj.weight"]) == {"q", "k", "v"}
    assert set(landed[f"{layer}mlp.gate_up_proj.weight"]) == {0, 1}
    assert sum(map(len, landed.values())) == len(tensors) - 2  # the maps
    assert model.hot_token_id.tolist() == tensors["t2d"].nonzero().flatten().tolist()


def captured(wheel: Path, family: str, draft: Path) -> list[int]:
    """Layers whose entering row a target of this family hands out for a draft: indices into HF
    `hidden_states`."""
    raw = json.loads((draft / "config.json").read_text())
    config = SimpleNamespace(**raw)  # as transformers hands it out
    asked = SimpleNamespace()
    source = wheel / "sglang/srt/model_executor/model_runner_components/spec_aux_hidden_state.py"
    branches = [n for n in ast.walk(ast.parse(source.read_text())) if isinstance(n, ast.Try)]
    [branch] = [n for n in branches if "eagle_config" in ast.unparse(n)]
    names = {"config": asked, "draft_model_config": SimpleNamespace(hf_config=config)}
    exec(compile(ast.Module([branch], []), "spec_aux_hidden_state", "exec"), names)  # noqa: S102
    target = SimpleNamespace(
        pp_group=SimpleNamespace(is_last_rank=True),
        config=SimpleNamespace(num_hidden_layers=LAYERS),
        model=SimpleNamespace(),
    )
    function(wheel, f"models/{family}", "set_eagle3_layers_to_capture")(
        target, asked.eagle_aux_hidden_state_layer_ids
    )
    return list(target.model.layers_to_capture)


@pytest.mark.parametrize("family", PLUS_ONE)
@pytest.mark.parametrize("layers", [CAPTURE, (3, 5, 8)])
def test_it_captures_the_layers_that_a_draft_was_trained_on(
    wheel: Path, tmp_path: Path, family: str, layers: tuple[int, int, int]
) -> None:
    target = LlamaConfig(
        vocab_size=48, hidden_size=64, intermediate_size=64, num_attention_heads=2, head_dim=32
    )
    draft = Draft(DraftConfig.for_target(target, layers, 48), torch.zeros(48, 64))
    draft.set_vocab(torch.arange(48))
    official.save(draft, tmp_path, LAYERS, torch.float32)
    assert captured(wheel, family, tmp_path) == list(layers)


def test_its_loader_reads_the_keys_of_our_config(wheel: Path, golden: Checkpoint) -> None:
    source = (wheel / "sglang/srt/models/llama_eagle3.py").read_text()
    raw = json.loads((golden.draft / "config.json").read_text())
    for key in ("draft_vocab_size", "target_hidden_size", "num_aux_hidden_states", "hidden_act"):
        assert key in raw
        assert key in source
    assert raw["architectures"][0] in source
