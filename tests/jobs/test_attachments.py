"""Which drafts are tried on a checkpoint, in which order, and the names that lead to one."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.attachments import Candidate, candidates, kinship, revisions, tried_of
from jobs.db import Database
from jobs.drafts import get_draft
from jobs.errors import NotFound
from jobs.models import Alias, Draft, Stage
from jobs.settings import Settings
from jobs.spec import JobSpec
from tests.jobs.conftest import Clock
from tests.jobs.world import World

SIZES = {"hidden_size": 64, "vocab_size": 100, "num_layers": 8}
RESOLVE = {
    **SIZES, "weights_sha256": "n" * 64, "tokenizer_sha256": "t" * 64,
    "resolved": "acme/model@" + "f" * 40,
}  # fmt: skip


@pytest.fixture
def world(db: Database, settings: Settings, clock: Clock) -> World:
    return World(db, settings, clock)


def spec(**attach: Any) -> JobSpec:
    return JobSpec.model_validate({"target": "acme/model", "recipe": "quick", "attach": attach})


def draft(world: World, name: str = "eagle3--other", **changes: Any) -> str:
    """A registered draft whose target has these sizes. Returns its id."""
    sizes = changes.pop("sizes", SIZES)
    job_id = world.submit()
    values: dict[str, Any] = {
        "id": f"dft_{job_id}", "job_id": job_id, "owner": "local", "name": name,
        "alias": Alias.CANDIDATE, "target": "x/y", "target_resolved": "x/y@" + "e" * 40,
        "weights_sha256": "w" * 64, "tokenizer_sha256": "u" * 64, "template_sha256": "m" * 64,
        "capture_layers": [2, 4, 5], "metrics": {"tau": 2.0}, "uri": "drafts/x",
        "manifest_sha256": "x" * 64, "created_at": world.clock.now,
    }  # fmt: skip
    with world.db.write() as s:
        s.add(Draft(**(values | changes)))
        stage = s.query(Stage).filter_by(job_id=job_id, name="resolve").one()
        stage.summary = dict(sizes)
    return str(values["id"])


def found(world: World, **attach: Any) -> list[Candidate]:
    with world.db.read() as s:
        return candidates(s, spec(**attach), RESOLVE, "local")


def ids(world: World, **attach: Any) -> list[str]:
    return [one.draft.id for one in found(world, **attach)]


def test_the_nearest_lineage_comes_first(world: World) -> None:
    sizes = draft(world)
    tokenizer = draft(world, tokenizer_sha256="t" * 64)
    model = draft(world, target_resolved="acme/model@" + "d" * 40)
    name = draft(world, "eagle3--acme--model")
    same = draft(world, weights_sha256="n" * 64)
    probe = {"candidates": 16}
    assert ids(world, probe=probe) == [same, name, model, tokenizer, sizes]
    assert [one.kin for one in found(world, probe=probe)] == [4, 3, 2, 1, 0]
    assert ids(world, probe={"candidates": 2}) == [same, name]


def test_champions_come_first_and_then_the_newest(world: World) -> None:
    champion = draft(world, alias=Alias.CHAMPION)
    older, newer = draft(world), draft(world)
    assert ids(world) == [champion, newer, older]


def test_what_cannot_fit_is_not_tried(world: World) -> None:
    draft(world, sizes={**SIZES, "hidden_size": 128})
    draft(world, sizes={**SIZES, "num_layers": 9})
    draft(world, deprecated_at=world.clock.now)
    draft(world, owner="key_other")
    assert ids(world) == []


def test_a_draft_that_was_reused_is_tried_once(world: World) -> None:
    source = draft(world)
    reused = draft(world, metrics={"tau": 2.0, "reuses": source})
    assert ids(world) == [reused]


def test_it_is_tried_with_the_tree_that_it_was_measured_with(world: World) -> None:
    one = draft(world, metrics={"tau": 2.0, "depth": 5})
    with world.db.write() as s:
        stage = s.query(Stage).filter_by(job_id=one.removeprefix("dft_"), name="benchmark").one()
        stage.summary = {"depth": 4, "top_k": 2, "total_tokens": 7}
    [tried] = found(world)
    assert (tried.depth, tried.top_k, tried.total_tokens) == (4, 2, 7)


def test_kinship_by_another_revision_needs_the_same_model(world: World) -> None:
    one = draft(world, target_resolved="acme/model-2@" + "d" * 40)
    with world.db.read() as s:
        assert kinship(spec(), RESOLVE, get_draft(s, one)) == 0


def test_the_name_of_a_checkpoint_leads_to_its_draft(world: World) -> None:
    one = draft(world, "eagle3--acme--model", target_resolved="acme/model@" + "d" * 40)
    name = "eagle3--acme--model@for-"
    with world.db.read() as s:
        with pytest.raises(NotFound):
            get_draft(s, name + "w" * 12)  # neither attached nor champion
    with world.db.write() as s:
        s.get_one(Draft, one).attached_at = world.clock.now
    with world.db.read() as s:
        attached = get_draft(s, name + "w" * 12)
        assert attached.id == one
        assert get_draft(s, name + "d" * 12).id == one
        assert revisions(attached) == ["w" * 12, "d" * 12]
        with pytest.raises(NotFound):
            get_draft(s, name + "0" * 12)


def test_what_is_left_is_left_since_the_draft_was_trained(world: World) -> None:
    trained = draft(world, metrics={"tau": 2.0})
    reused = draft(world, metrics={"tau": 1.92, "reuses": trained})
    probed = [
        {"id": one, "fits": True, "tau": 1.83, "capture_layers": []} for one in (trained, reused)
    ]
    with world.db.read() as s:
        tried = tried_of(s, spec(), RESOLVE, {"probed": probed, "capture_layers": []})
    assert [one.registered_tau for one in tried] == [2.0, 2.0]
    assert tried[1].retained == pytest.approx(0.83), "not 0.90 of what was left before"
