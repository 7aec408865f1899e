"""What must be true of a job that is done, whatever servers it ran on."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from safetensors.torch import load_file

from api.schemas import DraftView, EventView, JobView
from eagle3.config import STAGES
from eagle3.export import official
from tests.e2e.up import Inputs, Up
from tests.tiny import UNK, Tiny


def gapless(events: list[EventView]) -> bool:
    return [e.seq for e in events] == list(range(1, len(events) + 1))


def check_job(job: JobView) -> None:
    """Every stage is done; the draft is accepted often and changes nothing."""
    assert job.status == "succeeded", job.error
    assert [s.name for s in job.stages] == [*STAGES, "register"]
    assert {s.status for s in job.stages} == {"succeeded"}
    summaries = {s.name: s.summary or {} for s in job.stages}
    assert summaries["benchmark"]["tau"] >= 2
    assert summaries["train"]["acceptance_length"] >= 2
    parity = summaries["parity"]
    assert (parity["holds"], parity["left_out"]) == (True, {}), parity
    assert parity["engines"].keys() == {"native", "llamacpp"}
    assert all(one["texts_identical"] == 4 for one in parity["engines"].values())
    assert summaries["prove"]["verdict"] == "lossless"
    assert (summaries["prove"]["mismatches"], summaries["prove"]["tokens"]) == (0, 4 * 24)
    assert job.result is not None
    assert job.result["gates"]["passed"] is True


def check_draft(draft: DraftView, job: JobView) -> None:
    """The draft's row says which target it belongs to and what was measured."""
    resolve = next(s.summary or {} for s in job.stages if s.name == "resolve")
    for name in ("weights_sha256", "tokenizer_sha256", "template_sha256", "capture_layers"):
        assert getattr(draft, name) == resolve[name]
    assert draft.target_resolved == resolve["resolved"]
    assert draft.alias == "champion"
    assert draft.metrics["tau"] >= 2
    assert draft.metrics["lossless"] is True


def check_report(up: Up, job: JobView) -> dict[str, Any]:
    """Report and certificate come through the API. Returns the certificate."""
    html = up.client.artifact(job.id, "report.html").decode()
    assert html.lstrip().lower().startswith("<!doctype html")
    assert "token for token" in html
    assert "<svg" in html or "data:image" in html
    assert "token for token" in up.client.artifact(job.id, "report.md").decode()
    certificate: dict[str, Any] = json.loads(up.client.artifact(job.id, "certificate.json"))
    assert certificate["verdict"] == "lossless"
    return certificate


def check_pull(up: Up, draft: DraftView, folder: Path, inputs: Inputs) -> None:
    """`updraft pull` gives files with the recorded hashes, and a draft that loads."""
    pulled = up.command("pull", f"{draft.name}@champion", str(folder), "--json")
    assert pulled.returncode == 0, pulled.stderr
    files = {f["path"]: f["sha256"] for f in json.loads(pulled.stdout)["files"]}
    assert {"draft/config.json", "draft/model.safetensors", "certificate.md"} <= files.keys()
    found = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}
    assert found == files
    target = load_file(inputs.target.path / "model.safetensors")
    loaded = official.load(folder / "draft", target["model.embed_tokens.weight"])
    assert list(loaded.capture_layers) == draft.capture_layers


def check_bundle(folder: Path, job: JobView) -> None:
    """What was pulled says what each engine made of the draft, and the command that serves it."""
    serving = json.loads((folder / "serving.json").read_text())
    summary = next(s.summary or {} for s in job.stages if s.name == "parity")
    assert serving["engines"] == summary["engines"]
    assert serving["engines"]["llamacpp"]["acceptance_by_position"][0] > 0.5
    assert serving["serve"] == f"updraft serve {job.id} --engine llamacpp"
    assert serving["serve"] in (folder / "README.md").read_text()
    assert "## In the engines that serve it" in (folder / "report.md").read_text()


def check_served(up: Up, draft: DraftView, tiny: Tiny) -> None:
    """`updraft serve` answers its own curl line with the target's own text."""
    with up.serve(draft.id, "--engine", "llamacpp") as curl:
        answer = subprocess.run(curl, capture_output=True, check=True, timeout=300)
        prompt, tokens = json.loads(curl[-1])["prompt"], json.loads(answer.stdout)["tokens"]
    assert len(tokens) > 8
    assert tokens == tiny.chain(prompt[-1], len(tokens))


def check_served_in_text(up: Up, draft: DraftView, tiny: Tiny) -> None:
    """The same of vLLM, which is asked in text; the question's words are unknown to the target."""
    with up.serve(draft.id, "--engine", "vllm") as curl:
        answer = subprocess.run(curl, capture_output=True, check=True, timeout=300)
    text = json.loads(answer.stdout)["choices"][0]["message"]["content"]
    tokens = [int(word.removeprefix("t")) for word in text.split()]
    assert len(tokens) > 8
    assert tokens == tiny.chain(UNK, len(tokens))


def check_mlflow(uri: str, draft: DraftView, job: JobView) -> Run:
    """Run, live metrics, and a version with tags that bind it, under its aliases."""
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    assert draft.mlflow_run_id is not None
    run = client.get_run(draft.mlflow_run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["job_id"] == job.id
    assert run.data.params["train.ttt_steps"] == "3"
    assert run.data.params["regenerate.max_new_tokens"] == "24"
    assert run.data.metrics["eval/tau"] >= 2
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    lengths = client.get_metric_history(run.info.run_id, "eval/acceptance_length")
    steps = next(s.summary or {} for s in job.stages if s.name == "train")["steps"]
    assert sorted(m.step for m in losses) == list(range(1, steps + 1))
    assert len({m.step for m in lengths}) >= 3
    assert losses[-1].value < losses[0].value
    assert {"report.html", "certificate.md"} <= {
        f.path for f in client.list_artifacts(run.info.run_id)
    }

    [learned] = run.inputs.dataset_inputs
    assert int(json.loads(learned.dataset.profile)["train"]) > 0

    version = client.get_model_version_by_alias(draft.name, "champion")
    assert version.description.startswith(f"EAGLE-3 draft `{draft.id}`")
    assert str(version.version) == draft.mlflow_version
    assert client.get_model_version_by_alias(draft.name, "candidate").version == version.version
    assert version.run_id == run.info.run_id
    export = next(s.summary or {} for s in job.stages if s.name == "export")
    for name, value in {
        "draft_id": draft.id,
        "base_model_resolved": draft.target_resolved,
        "weights_sha256": draft.weights_sha256,
        "tokenizer_sha256": draft.tokenizer_sha256,
        "template_sha256": draft.template_sha256,
        "aux_layers": ",".join(map(str, draft.capture_layers)),
        "aux_layers_convention": export["convention"],
        "draft_vocab_sha256": export["draft_vocab_sha256"],
        "lossless": "true",
        "gate": "passed",
        "engines": "llamacpp,native",
        "parity.llamacpp": "agrees",
    }.items():
        assert version.tags[name] == value, name
    return run
