"""Drafts tried on a checkpoint: one that learned it, one that did not, one that does not fit."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from eagle3.attach.fingerprint import FILE, Fingerprint
from eagle3.attach.probe import gain, probe_drafts, said
from eagle3.attach.stage import PROBE
from eagle3.bench.prompts import HeldOut
from eagle3.cli import main
from eagle3.config import PromptsConfig, RunConfig, load_recipe
from eagle3.config.probe import ProbeConfig, ProbedDraft
from eagle3.draft import Draft, DraftConfig
from eagle3.errors import BadInput
from eagle3.export import official
from eagle3.run import current, read_config, run_stage
from eagle3.target import default_capture_layers
from tests.eagle3.data.conftest import DATA_STAGES
from tests.eagle3.engines.checkpoints import Checkpoint, build
from tests.tiny import build_permutation_target, write_prompts

pytestmark = pytest.mark.usefixtures("quick_calibration")

FACTS = {
    "architecture": "LlamaForCausalLM", "model_type": "llama", "num_layers": 8, "hidden_size": 64,
    "vocab_size": 48, "parameters": 1, "weights_sha256": "w", "tokenizer_sha256": "t",
    "template_sha256": "m", "config_sha256": "c",
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return build(tmp_path_factory.mktemp("golden"), slot=1)


def config_of(*drafts: Path) -> ProbeConfig:
    named = tuple(ProbedDraft(id=f"d{n}", path=str(path)) for n, path in enumerate(drafts))
    return ProbeConfig(drafts=named, prompts=3, max_new_tokens=10, spot_checks=2)


def test_a_draft_that_learned_the_target_and_one_that_did_not(
    made: Checkpoint, tmp_path: Path
) -> None:
    unlearned = tmp_path / "unlearned"
    shutil.copytree(made.draft, unlearned)
    tensors = load_file(unlearned / "model.safetensors")
    for name, tensor in tensors.items():
        if "fc" in name or "midlayer" in name:
            tensors[name] = tensor.flip(0).contiguous()
    tensors["lm_head.weight"] = tensors["lm_head.weight"].flip(0).contiguous()
    save_file(tensors, unlearned / "model.safetensors")
    here = Fingerprint.of(made.target, FACTS)
    (unlearned / FILE).write_text(here.model_dump_json())
    prompts = [HeldOut(str(n), ids) for n, ids in enumerate(made.prompts(4))]
    good, bad = probe_drafts(made.target, here, prompts, config_of(made.draft, unlearned))
    assert good.fits
    assert good.tau > 2.5
    assert good.tau_ci[0] <= good.tau <= good.tau_ci[1]
    assert good.acceptance_by_position[0] > 0.9
    assert good.distance is None
    assert good.lossless
    assert good.prompts == 3
    assert good.compared_tokens == 20
    assert bad.fits
    assert bad.tau < 1.5
    assert bad.distance == 0.0
    assert bad.lossless, "a bad draft is slow, not wrong"
    assert "acceptance length" in said(good)
    assert sum(tokens for tokens, _ in good.by_prompt) / good.rounds == pytest.approx(good.tau)
    ahead, behind = gain(good, bad, 0), gain(bad, good, 0)
    assert ahead is not None
    assert behind is not None
    assert ahead["tau"] == pytest.approx(good.tau - bad.tau)
    assert ahead["tau_ci"][0] > 0 > behind["tau_ci"][1]


def test_a_draft_of_another_target_is_said_not_to_fit(made: Checkpoint, tmp_path: Path) -> None:
    other = build_permutation_target(tmp_path / "other", vocab=32)
    [found] = probe_drafts(other.path, Fingerprint.of(other.path, FACTS), [], config_of(made.draft))
    assert not found.fits
    assert "vocabulary" in found.why
    assert found.rounds == 0
    assert gain(found, found, 0) is None


def test_the_stage_without_candidates_says_what_the_target_is(tmp_path: Path) -> None:
    run = _prepared(tmp_path, ProbeConfig())
    summary = run_stage(PROBE, run, io.StringIO())["summary"]
    assert summary["probed"] == []
    assert summary["fingerprint"]["hidden_size"] == 64
    stored = Fingerprint.read(current(run, "probe") / FILE)
    assert stored.weights_sha256 == summary["fingerprint"]["weights_sha256"]


def test_the_stage_refuses_a_run_that_names_no_probe(tmp_path: Path) -> None:
    run = _prepared(tmp_path, None)
    with pytest.raises(BadInput, match="no drafts to probe"):
        run_stage(PROBE, run, io.StringIO())


def test_two_drafts_side_by_side_and_in_an_engine(tmp_path: Path) -> None:
    run = _prepared(tmp_path, None)
    draft = _unlearned(tmp_path / "target", tmp_path / "draft")
    probe = config_of(draft, draft).model_copy(update={"compare": True, "parity": True})
    config = read_config(run).model_copy(update={"probe": probe})
    (run / "config.json").write_text(config.model_dump_json())
    summary = run_stage(PROBE, run, io.StringIO())["summary"]
    assert summary["compared"] == {"tau": 0.0, "tau_ci": [0.0, 0.0]}
    assert list(summary["parity"]["engines"]) == ["native"]
    native = summary["parity"]["engines"]["native"]
    assert (native["loads"], native["texts_identical"]) == (True, 3)
    assert (current(run, "probe") / "parity.json").is_file()


def test_the_command_on_a_run(
    tmp_path: Path, made: Checkpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    run = _prepared(tmp_path, None)
    with pytest.raises(SystemExit) as left:
        main(["probe", str(run), str(made.draft), "--prompts", "2"])
    assert left.value.code == 1, "a draft for another vocabulary"
    found = json.loads(capsys.readouterr().out)
    assert not found["probed"][0]["fits"]
    assert found["settings"]["prompts"] == 2


def _unlearned(target: Path, folder: Path) -> Path:
    """A draft that fits a target and knows nothing of it."""
    model = AutoModelForCausalLM.from_pretrained(target)
    layers = model.config.num_hidden_layers
    draft = Draft(
        DraftConfig.for_target(model.config, default_capture_layers(layers), 32),
        model.model.embed_tokens.weight.detach(),
    )
    draft.set_vocab(torch.arange(32))
    official.save(draft, folder, layers, torch.float32)
    return folder


def _prepared(folder: Path, probe: ProbeConfig | None) -> Path:
    """A run directory on a tiny target, up to `prepare`."""
    tiny = build_permutation_target(folder / "target")
    source = write_prompts(folder / "prompts.jsonl", tiny.prompts(24))
    recipe = load_recipe("quick", {"engines": ["native"]})
    config = RunConfig(
        target=f"file://{tiny.path}",
        prompts=PromptsConfig(source=str(source), heldout=4),
        recipe=recipe,
        probe=probe,
    )
    run = folder / "run"
    run.mkdir()
    (run / "config.json").write_text(config.model_dump_json())
    for name in ("resolve", "prepare"):
        run_stage(DATA_STAGES[name], run, io.StringIO())
    return run
