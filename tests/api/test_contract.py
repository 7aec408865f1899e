"""Every operation of the description, asked at random: it fails as described or not at all.

Half of the requests name what exists, so that they get past the first look.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given
from hypothesis import settings as how
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from sqlalchemy import select
from sqlalchemy.orm import Session

from api.app import create_app
from api.generate import OPENAPI
from jobs import service, webhooks
from jobs.base import Base
from jobs.db import Database
from jobs.drafts import add_draft
from jobs.models import Draft
from jobs.spec import parse_spec
from tests.settings import settings_of

NOW = datetime(2026, 3, 1, tzinfo=UTC)
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
OPERATIONS = sorted(
    operation["operationId"]
    for methods in json.loads(OPENAPI.read_text())["paths"].values()
    for operation in methods.values()
)
MANIFEST = b'{"files": {}}'
HOST = {"host": "127.0.0.1:8300"}
ENDLESS = {"streamEvents"}
"""Of a job that goes on, so it is asked for one that has ended, which no other request retries."""

QUICK = 6
"""Examples of an operation in the normal run; the whole takes well under a minute."""
LONG = 50


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    settings = settings_of(
        home=tmp_path_factory.mktemp("contract"),
        hub_offline=True,
        max_active_jobs=10**6,
    )
    app = create_app(settings)
    Base.metadata.create_all(app.state.updraft.db.engine)
    yield app
    app.state.updraft.db.close()


@pytest.fixture(scope="module")
def known(app: FastAPI) -> dict[str, list[str]]:
    """Values of path parameters that exist."""
    db: Database = app.state.updraft.db
    with db.write() as session:
        spec = parse_spec({"target": "demo", "recipe": "quick"})
        settings = app.state.updraft.settings
        goes_on, ended, streamed = (
            service.submit(session, spec, settings=settings, now=NOW).job.id for _ in range(3)
        )
        for job_id in (ended, streamed):
            service.request_cancel(session, job_id, now=NOW)
        endpoint = webhooks.add_endpoint(
            session,
            service.LOCAL_OWNER,
            "https://ci.example.com",
            events=[],
            description="",
            all_owners=False,
            now=NOW,
        )
        sent = webhooks.test_endpoint(session, endpoint, NOW)
        refs = [_draft(session, made).id for made in (ended, goes_on)]
    app.state.updraft.store.put_bytes("drafts/known/manifest.json", MANIFEST)
    return {
        "ref": refs,
        "job_id": [ended, goes_on, streamed],
        "endpoint_id": [endpoint.id],
        "delivery_id": [sent.id],
    }


def _draft(session: Session, job_id: str) -> Draft:
    """A registered draft of a job; the first is champion, the second a candidate."""
    draft = Draft(
        id=f"dft_{job_id}",
        job_id=job_id,
        owner=service.LOCAL_OWNER,
        name="eagle3--demo",
        target="demo",
        target_resolved="demo@sha256:abc",
        weights_sha256="w" * 64,
        tokenizer_sha256="t" * 64,
        template_sha256="m" * 64,
        capture_layers=[2, 15, 27],
        metrics={"tau": 1.42},
        uri="drafts/known",
        manifest_sha256=hashlib.sha256(MANIFEST).hexdigest(),
        created_at=NOW,
    )
    champion = session.scalar(select(Draft.id)) is None
    return add_draft(session, draft, champion=champion, now=NOW)


@pytest.fixture(scope="module")
def schema(app: FastAPI) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", app, headers=HOST)


def ask(schema: Any, known: dict[str, list[str]], operation_id: str, examples: int) -> None:
    """Send so many requests of one operation, and check every answer."""
    operation = schema.find_operation_by_id(operation_id)

    @how(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(), data=st.data())
    def asked(case: Any, data: st.DataObject) -> None:
        for name, values in known.items():
            if name in (case.path_parameters or {}) and data.draw(st.booleans()):
                if name == "job_id":  # the last is the one to stream
                    values = values[2:] if operation_id in ENDLESS else values[:2]
                case.path_parameters[name] = data.draw(st.sampled_from(values))
        case.call_and_validate(base_url="http://127.0.0.1:8300", headers=HOST, checks=CHECKS)

    asked()


@pytest.mark.parametrize("operation_id", OPERATIONS)
def test_every_answer_is_described(schema: Any, known: Any, operation_id: str) -> None:
    ask(schema, known, operation_id, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("operation_id", OPERATIONS)
def test_every_answer_is_described_at_length(schema: Any, known: Any, operation_id: str) -> None:
    ask(schema, known, operation_id, LONG)
