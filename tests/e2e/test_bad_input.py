"""What a user can get wrong: refused at once, or named by the first stage, and nothing more run."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from api.client import ApiError
from api.schemas import JobView
from eagle3.config import STAGES
from tests.e2e.checks import gapless
from tests.e2e.up import Inputs, Up

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
SECONDS = timedelta(seconds=120)
"""A few on a quiet machine, most of them spent on importing torch."""


@dataclass(frozen=True)
class Mistake:
    spec: dict[str, Any]
    says: str
    """What the message must name."""


@pytest.fixture(scope="module")
def mistakes(inputs: Inputs, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Mistake]:
    folder = tmp_path_factory.mktemp("mistakes")
    mute = shutil.copytree(inputs.target.path, folder / "mute")
    (mute / "chat_template.jinja").unlink()
    return {
        "absent": Mistake(
            inputs.spec(target=f"file://{folder}/absent"), f"{folder}/absent is not a directory"
        ),
        "not a causal LM": Mistake(
            inputs.spec(target=f"file://{_encoder(inputs.target.path, folder / 'encoder')}"),
            "BertModel is not a causal language model",
        ),
        "no chat template": Mistake(inputs.spec(target=f"file://{mute}"), "no chat template"),
        "no prompt file": Mistake(
            inputs.spec(prompts={"source": f"{folder}/none.jsonl"}),
            f"the prompt file {folder}/none.jsonl does not exist",
        ),
        "no such engine here": Mistake(
            inputs.spec(engines=["native", "vllm"]), "names vllm, which is not installed here"
        ),
    }


@pytest.fixture(scope="module")
def ended(embedded: Up, mistakes: dict[str, Mistake]) -> dict[str, JobView]:
    jobs = {name: embedded.submit(mistake.spec) for name, mistake in mistakes.items()}
    return {name: embedded.wait(job) for name, job in jobs.items()}


@pytest.mark.parametrize(
    "name",
    ["absent", "not a causal LM", "no chat template", "no prompt file", "no such engine here"],
)
def test_a_mistake_ends_the_job_in_its_first_stage(
    embedded: Up, ended: dict[str, JobView], mistakes: dict[str, Mistake], name: str
) -> None:
    job = ended[name]
    assert job.status == "failed"
    assert job.error is not None
    assert (job.error.reason, job.error.stage) == ("bad_input", "resolve")
    assert mistakes[name].says in job.error.message
    assert (job.error.retryable, job.error.attempt) == (False, 1)
    assert [s.status for s in job.stages] == ["failed", *["cancelled"] * len(STAGES)]
    assert job.started_at is not None
    assert job.finished_at is not None
    assert job.finished_at - job.started_at < SECONDS
    events = embedded.events(job)
    assert gapless(events)
    assert [e.data["stage"] for e in events if e.type == "stage.running"] == ["resolve"]
    assert job.id not in {d.job_id for d in embedded.client.drafts().data}


def test_the_command_line_says_it_too(embedded: Up, ended: dict[str, JobView]) -> None:
    shown = embedded.command("show", ended["no chat template"].id)
    assert "no chat template" in shown.stdout
    assert "chat_template.jinja" in shown.stdout  # what to do about it


def test_an_unknown_recipe_key_is_refused_at_once(embedded: Up, inputs: Inputs) -> None:
    before = [job.id for job in embedded.client.jobs().data]
    spec = inputs.spec(overrides={"train": {"epoch": 3}})
    with pytest.raises(ApiError) as refused:
        embedded.client.submit(spec)
    assert refused.value.status == 422
    assert [e.pointer for e in refused.value.problem.errors] == ["#/overrides/train/epoch"]
    assert [job.id for job in embedded.client.jobs().data] == before


def _encoder(target: Path, folder: Path) -> Path:
    """The same files with the config of a model that reads and does not write."""
    shutil.copytree(target, folder)
    config = {"architectures": ["BertModel"], "model_type": "bert", "vocab_size": 64}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
