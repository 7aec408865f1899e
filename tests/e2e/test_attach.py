"""New checkpoints through the shell steps of the pipelines, against a live service: a small change
is served by the draft that exists, a directory that is no model by none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
import yaml

from benchmarks.attach_demo import perturb
from tests.e2e.up import PATIENCE_S, Inputs, Up
from tests.pipeline import CI, github_steps, gitlab_job, shell

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def former(embedded: Up, inputs: Inputs) -> str:
    """A draft for the checkpoint before. Returns its id."""
    spec = inputs.spec(model_name="eagle3--attached", seed=1)  # its training is no other test's
    job = embedded.wait(embedded.submit(spec))
    assert job.status == "succeeded", job.error
    assert job.result is not None
    return str(job.result["draft_id"])


@pytest.fixture
def policy(inputs: Inputs, tmp_path: Path) -> Path:
    """The recipe of the draft before, and little to measure."""
    spec = inputs.spec(model_name="eagle3--attached", gates={"min_tau": 1.5})
    spec["attach"] = {"probe": {"prompts": 4, "max_new_tokens": 24, "spot_checks": 2}}
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in spec.items() if k != "target"}))
    return path


def variables_of(up: Up) -> dict[str, str]:
    return {**up.env, "UPDRAFT_URL": up.url, "TIMEOUT": str(PATIENCE_S)}


def test_the_github_action_attaches_by_reuse(
    embedded: Up, inputs: Inputs, former: str, policy: Path, tmp_path: Path
) -> None:
    checkpoint = perturb(inputs.target.path, tmp_path / "checkpoint", 0.001)
    outputs, page = tmp_path / "outputs", tmp_path / "page"
    variables = {
        "TARGET": f"file://{checkpoint}",
        "POLICY": str(policy),
        "KEY": "attach-tiny-github",
        "GITHUB_OUTPUT": str(outputs),
        "GITHUB_STEP_SUMMARY": str(page),
    }
    for step in github_steps():
        done = shell(variables_of(embedded), tmp_path, step["run"], **variables)
        assert done.returncode == 0, done.stderr
    told = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
    assert told["exit-code"] == "10"
    assert told["status"] == "attached_by_reuse"
    draft = embedded.client.draft(told["draft"])
    assert draft.id != former
    assert draft.metrics["reuses"] == former
    assert draft.alias == "champion"
    assert "Reused as it is" in page.read_text()
    found: dict[str, Any] = json.loads((tmp_path / "updraft.json").read_text())
    [tried] = found["decision"]["tried"]
    assert tried["distance"] == pytest.approx(0.001, rel=0.5)
    assert tried["lossless"]
    assert Xml.parse(tmp_path / "updraft-junit.xml").getroot().get("failures") == "0"  # noqa: S314


def test_a_draft_is_evaluated_on_a_checkpoint_beside_another(
    embedded: Up, inputs: Inputs, former: str, tmp_path: Path
) -> None:
    other = embedded.wait(embedded.submit(inputs.spec(model_name="eagle3--attached", seed=2)))
    assert other.result is not None, other.error
    checkpoint = perturb(inputs.target.path, tmp_path / "checkpoint", 0.001)
    job, _ = embedded.client.evaluate(
        other.result["draft_id"], against=former, target=f"file://{checkpoint}", count=4
    )
    done = embedded.wait(job)
    assert done.status == "succeeded", done.error
    assert [s.name for s in done.stages] == ["resolve", "prepare", "probe"]
    [kept] = embedded.client.evaluations(other.result["draft_id"]).data
    assert kept.result == done.result
    assert kept.result is not None
    assert kept.result["lossless"]
    assert kept.result["tau"] > 1.5
    assert kept.result["distance"] == pytest.approx(0.001, rel=0.5)
    against = kept.result["against"]
    assert against["draft_id"] == former
    low, high = against["tau_gain_ci"]
    assert low <= against["tau_gain"] <= high
    assert against["tau_gain"] == pytest.approx(kept.result["tau"] - against["tau"])


def test_the_gitlab_template_fails_with_the_code(
    embedded: Up, policy: Path, tmp_path: Path
) -> None:
    (tmp_path / "nothing").mkdir()
    job = gitlab_job()
    script = "\n".join([*job["before_script"], *job["script"]])
    variables = {
        "TARGET": f"file://{tmp_path / 'nothing'}",
        "POLICY": str(policy),
        "KEY": "attach-tiny-gitlab",
    }
    done = shell(variables_of(embedded), tmp_path, script, **variables)
    assert done.returncode == 30, done.stderr
    assert "no draft can be attached" in done.stdout
    suite = Xml.parse(tmp_path / job["artifacts"]["reports"]["junit"]).getroot()  # noqa: S314
    assert suite.get("failures") == "1"
    assert set(job["artifacts"]["paths"]) <= {p.name for p in tmp_path.iterdir()}


def test_the_example_calls_the_action_with_inputs_that_it_has() -> None:
    action = yaml.safe_load((CI / "github" / "action.yml").read_text())
    example = yaml.safe_load((CI / "github" / "example-workflow.yml").read_text())
    [step] = [s for s in example["jobs"]["attach"]["steps"] if "deploy/ci" in s.get("uses", "")]
    assert set(step["with"]) <= set(action["inputs"])
    required = {name for name, one in action["inputs"].items() if one.get("required")}
    assert required <= set(step["with"])
