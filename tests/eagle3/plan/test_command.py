"""`eagle3 plan` as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3.cli import main


def typed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["plan", *words])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_the_demo(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = typed(capsys, "demo", "--gpu", "h100", "--gpus", "8", "--price", "24")
    assert code == 0
    assert "134.5 million parameters" in out
    assert "8 x NVIDIA H100" in out
    assert "Recommended: extract.mode" in out


def test_json_of_a_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = {
        "model_type": "llama",
        "vocab_size": 96,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, out, _ = typed(
        capsys, str(tmp_path), "--prompts", "1000", "--prompt-tokens", "20", "--json"
    )
    plan = json.loads(out)
    assert code == 0
    assert plan["workload"]["train_prompts"] + plan["workload"]["heldout_prompts"] == 1000
    assert plan["hardware"]["device"]["name"] == "cpu"


def test_a_count_stands_in_for_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    for recipe in ("paper", "domain"):
        code, out, _ = typed(capsys, "demo", "--recipe", recipe, "--prompts", "5000")
        assert code == 0
        assert "held out" in out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["org/name"], 3, "org/name: the hub is not asked"),
        (["demo", "--data", "org/set"], 3, "--prompts N"),
        (["demo", "--gpu", "abacus"], 2, "expected one of b200"),
        (["demo", "--gpus", "0"], 2, "--gpus 0: expected a positive number"),
        (["demo", "--price", "nan"], 2, "--price nan: expected a positive number"),
        (["demo", "--disk", "inf"], 2, "--disk inf: expected a positive number"),
        (["demo", "--prompt-tokens", "inf"], 2, "--prompt-tokens inf: expected"),
        (["demo", "--prompts", "1" * 400], 2, "1: expected a positive number, 1e+12 at most"),
        (["demo", "--recipe", "nope"], 2, "recipe 'nope' does not exist"),
        (["demo", "--recipe", "paper"], 3, "--prompts N"),
        (["demo", "--recipe", "domain"], 2, "prompts of your own"),
        (["no reference"], 2, "is not a reference"),
        (["gguf:/a/b.gguf"], 3, "when `resolve` has fetched it"),
        (["/nowhere"], 3, "No such file"),
    ],
)
def test_refusals_say_what_to_do(
    capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    got, out, err = typed(capsys, *words)
    assert (got, out) == (code, "")
    assert said in err
