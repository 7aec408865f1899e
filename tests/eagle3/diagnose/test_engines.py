"""`eagle3 diagnose --engine` in engines of others: faults of the draft, and of the engine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file, save_file

from eagle3.diagnose.diagnosis import Diagnosis
from eagle3.diagnose.examine import Asked, examine
from eagle3.export import gguf
from eagle3.export.layers import ENGINES, LAYER_KEY
from eagle3.export.official import Stored
from tests.eagle3.engines.checkpoints import LAYERS, OTHERS, Checkpoint, build
from tests.tiny import write_prompts

WORDS = "{% for m in messages %}{{ m['content'] + ' ' }}{% endfor %}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Its draft reads the second of three unusual layers alone."""
    made = build(tmp_path_factory.mktemp("golden"), slot=1, layers=OTHERS)
    (made.target / "chat_template.jinja").write_text(WORDS)
    return made


@pytest.fixture
def draft(made: Checkpoint, tmp_path: Path) -> Path:
    """A copy to plant faults in."""
    return Path(shutil.copytree(made.draft, tmp_path / "draft"))


def diagnosed(made: Checkpoint, draft: Path, engine: str, flags: str = "") -> Diagnosis:
    texts = [" ".join(f"t{i}" for i in made.order[at : at + 4]) for at in range(4)]
    prompts = str(write_prompts(draft.parent / "p.jsonl", [{"prompt": text} for text in texts]))
    asked = Asked(prompts, prompts, engine=engine, flags=flags, max_new_tokens=9)
    return examine(made.target, draft, asked)


def by_engine(found: Diagnosis) -> str:
    [text] = [sign.text for sign in found.signs if sign.cause == "engine"]
    return text


@pytest.mark.timeout(1800)
def test_layers_listed_as_another_engine_counts(made: Checkpoint, draft: Path, server: str) -> None:
    """The engine does what the files say, and these say it in SGLang's words."""
    theirs = ENGINES["sglang"].listed(OTHERS, LAYERS)
    raw = json.loads((draft / "config.json").read_text())
    raw |= {LAYER_KEY: theirs, "eagle_config": {LAYER_KEY: theirs}}
    (draft / "config.json").write_text(json.dumps(raw))
    found = diagnosed(made, draft, server)
    assert found.causes == ["captured layers"], found.said
    assert "layers 2, 5, 7 in place of 2, 4, 7" in found.said  # it reads the second one alone
    assert (found.tau < 1.1, found.corrected_tau > 3) == (True, True)
    assert by_engine(found).endswith("accepts 0% 0% 0% by position, as the files lead to")


@pytest.mark.slow  # a model converted, a server started
def test_a_healthy_draft_and_an_engine_told_another_method(made: Checkpoint, draft: Path) -> None:
    """Started as it should be, it accepts all; the user's own command line is what is wrong."""
    line = "llama-server -m t.gguf --model-draft d.gguf --spec-type draft-simple"
    found = diagnosed(made, draft, "llamacpp", line)
    assert found.causes == ["engine flags"]
    assert "llama.cpp is told the method draft-simple" in found.said
    assert by_engine(found).endswith("accepts 100% 100% 100% by position, as the files lead to")


def _a_layer_late(monkeypatch: pytest.MonkeyPatch) -> None:
    write = gguf.write

    def late(stored: Stored, out: Path, dtype: gguf.Dtype) -> None:
        low, mid, high = stored.config.capture_layers
        config = replace(stored.config, capture_layers=(low + 1, mid + 1, high + 1))
        write(replace(stored, config=config), out, dtype)

    monkeypatch.setattr(gguf, "write", late)


def _offsets_for_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "vocab", SimpleNamespace(kept_ids=lambda d2t: d2t))


@pytest.mark.slow  # a model converted, a server started
@pytest.mark.parametrize("plant", [_a_layer_late, _offsets_for_ids])
def test_a_sound_draft_that_the_engines_own_format_spoils(
    made: Checkpoint,
    draft: Path,
    plant: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    found = diagnosed(made, draft, "llamacpp")
    assert found.causes == ["engine"]
    assert "The engine does not do what the files say" in found.said
    assert by_engine(found).endswith("the files lead to 100% 100% 100%")
    assert found.exit_code == 1


@pytest.mark.slow  # a model converted
def test_a_tensor_that_the_engine_would_do_without(made: Checkpoint, draft: Path) -> None:
    """llama.cpp and vLLM would load it; here it gets as far as neither."""
    tensors = load_file(draft / "model.safetensors")
    del tensors["midlayer.hidden_norm.weight"]
    save_file(tensors, draft / "model.safetensors")
    found = diagnosed(made, draft, "llamacpp")
    assert found.causes == ["missing tensors"]
    assert "does not serve the draft" in by_engine(found)
    assert "midlayer.hidden_norm.weight is missing" in by_engine(found)
