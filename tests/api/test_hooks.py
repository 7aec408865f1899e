"""Events of MLflow: signed by MLflow's own function, and once by a real server."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from cryptography.fernet import Fernet
from fastapi import FastAPI
from fastapi.testclient import TestClient
from mlflow.tracking import MlflowClient
from mlflow.webhooks.constants import (
    WEBHOOK_DELIVERY_ID_HEADER,
    WEBHOOK_SIGNATURE_HEADER,
    WEBHOOK_TIMESTAMP_HEADER,
)
from mlflow.webhooks.delivery import _generate_hmac_signature
from mlflow.webhooks.types import ModelVersionCreatedPayload
from pydantic import ValidationError
from sqlalchemy import select

from api.app import create_app
from api.state import State
from jobs.base import Base
from jobs.errors import Invalid
from jobs.models import Job
from jobs.registry import Registry
from jobs.settings import Settings
from tests.api.conftest import BASE_URL, problem_of
from tests.servers import free_port, mlflow_server, wait_until
from tests.settings import settings_of
from workers.versions import Watch

SECRET = "of-the-hook-0123456789"
PATH = "/v1/hooks/mlflow"
HALF = {WEBHOOK_DELIVERY_ID_HEADER: b"d-1", WEBHOOK_TIMESTAMP_HEADER: b"1"}


@pytest.fixture
def hooked(tmp_path: Path) -> Settings:
    policy = tmp_path / "policy.yaml"
    policy.write_text("recipe: quick\nlabels: {from: mlflow}\nattach: {reuse_above: 0.8}\n")
    return settings_of(
        home=tmp_path / "home", mlflow_hook_secret=SECRET, mlflow_hook_names=("acme-*",),
        mlflow_hook_policy=policy,
    )  # fmt: skip


@pytest.fixture
def app(hooked: Settings) -> FastAPI:
    made = create_app(hooked)
    Base.metadata.create_all(made.state.updraft.db.engine)
    return made


@pytest.fixture
def hook(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=BASE_URL, raise_server_exceptions=False) as client:
        yield client


def event(name: str = "acme-chat", version: str = "7", **changes: Any) -> dict[str, Any]:
    data = {**ModelVersionCreatedPayload.example(), "name": name, "version": version, **changes}
    return {"entity": "model_version", "action": "created", "timestamp": "x", "data": data}


def send(client: TestClient, body: dict[str, Any], *, secret: str = SECRET, age: int = 0) -> Any:
    text, stamp = json.dumps(body), str(int(time.time()) - age)
    headers = {
        WEBHOOK_DELIVERY_ID_HEADER: "d-1",
        WEBHOOK_TIMESTAMP_HEADER: stamp,
        WEBHOOK_SIGNATURE_HEADER: _generate_hmac_signature(secret, "d-1", stamp, text),
    }
    return client.post(PATH, content=text, headers=headers)


def test_a_version_gets_one_attachment(hook: TestClient) -> None:
    first = send(hook, event())
    assert first.status_code == 202, first.text
    found = hook.get(f"/v1/attachments/{first.json()['attachment_id']}").json()
    assert found["target"] == "models:/acme-chat/7"
    assert found["policy"]["attach"]["reuse_above"] == 0.8
    assert found["policy"]["labels"] == {"from": "mlflow"}
    again = send(hook, event(description="told again")).json()
    assert again == {**first.json(), "replayed": True}
    assert send(hook, event(version="8")).json()["attachment_id"] != found["id"]
    assert len(hook.get("/v1/jobs").json()["data"]) == 2


def test_another_policy_makes_no_second_one(hook: TestClient, hooked: Settings) -> None:
    send(hook, event())
    assert hooked.mlflow_hook_policy is not None
    hooked.mlflow_hook_policy.write_text("recipe: standard\n")
    assert "another policy" in send(hook, event()).json()["why"]
    assert len(hook.get("/v1/jobs").json()["data"]) == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (event(name="other"), "HOOK_NAMES"),
        (event(tags={"job_id": "job_1", "draft_id": "dft_1"}), "draft of this service"),
        ({**event(), "action": "set", "entity": "model_version_tag"}, "asks for nothing"),
    ],
)
def test_what_asks_for_nothing(hook: TestClient, body: dict[str, Any], why: str) -> None:
    answer = send(hook, body)
    assert answer.status_code == 202
    assert answer.json()["attachment_id"] is None
    assert why in answer.json()["why"]
    assert hook.get("/v1/jobs").json()["data"] == []


def test_tags_of_others_mean_nothing(hook: TestClient) -> None:
    """A pipeline's own `job_id` marks no draft."""
    told = event(tags={"job_id": "train-17", "draft_id": "3"})
    assert send(hook, told).json()["attachment_id"] is not None


@pytest.mark.parametrize("changes", [{"name": "acme chat"}, {"version": "../7"}, {"name": ""}])
def test_what_no_target_can_be_called_is_refused_by_field(
    hook: TestClient, hooked: Settings, changes: dict[str, str]
) -> None:
    object.__setattr__(hooked, "mlflow_hook_names", ("*",))
    problem = problem_of(send(hook, event(**changes)), 422)
    assert problem["errors"][0]["pointer"] == "#/target"
    assert hook.get("/v1/jobs").json()["data"] == []


def test_a_body_that_is_too_long_is_not_read(hook: TestClient) -> None:
    problem_of(send(hook, event(description="x" * (1 << 20))), 413)


@pytest.mark.parametrize(
    "refused",
    [
        lambda web: send(web, event(), secret="another"),
        lambda web: send(web, event(), age=400),
        lambda web: send(web, event(), age=-400),
        lambda web: web.post(PATH, json=event()),
        lambda web: web.post(
            PATH, json=event(), headers={**HALF, WEBHOOK_SIGNATURE_HEADER: b"v1,\xe9"}
        ),
    ],
)
def test_what_is_not_signed_or_old_is_refused(
    hook: TestClient, refused: Callable[[TestClient], Any]
) -> None:
    problem_of(refused(hook), 401)
    assert hook.get("/v1/jobs").json()["data"] == []


def test_the_signature_is_over_the_body(hook: TestClient) -> None:
    text, stamp = json.dumps(event()), str(int(time.time()))
    headers = {
        WEBHOOK_DELIVERY_ID_HEADER: "d-1", WEBHOOK_TIMESTAMP_HEADER: stamp,
        WEBHOOK_SIGNATURE_HEADER: _generate_hmac_signature(SECRET, "d-1", stamp, text),
    }  # fmt: skip
    problem_of(hook.post(PATH, content=text.replace("7", "8"), headers=headers), 401)
    headers[WEBHOOK_DELIVERY_ID_HEADER] = "d-2"
    problem_of(hook.post(PATH, content=text, headers=headers), 401)


@pytest.mark.parametrize("body", [{}, {"entity": "model_version"}, {**event(), "data": {}}])
def test_what_is_no_event(hook: TestClient, body: dict[str, Any]) -> None:
    problem_of(send(hook, body), 422)


def test_without_a_secret_there_is_no_hook(web: TestClient) -> None:
    problem_of(send(web, event()), 404)


def test_a_wrong_policy_is_found_at_the_start(hooked: Settings) -> None:
    assert hooked.mlflow_hook_policy is not None
    hooked.mlflow_hook_policy.write_text("attach: {reuse_above: 2}\n")
    with pytest.raises(Invalid, match="reuse_above"):
        create_app(hooked)
    hooked.mlflow_hook_policy.unlink()
    with pytest.raises(Invalid, match="HOOK_POLICY"):
        create_app(hooked)


def test_full_mode_asks_whose_they_are(tmp_path: Path) -> None:
    full = {
        "mode": "full", "home": tmp_path, "api_key_pepper": "0123456789abcdef" * 4,
        "database_url": "postgresql://u:9f8e7d@db/x", "broker_url": "redis://r", "store_url": "s3://b",
        "mlflow_hook_secret": SECRET,
    }  # fmt: skip
    with pytest.raises(ValidationError, match="mlflow_hook_owner"):
        settings_of(**full)
    names = {**full, "mlflow_hook_secret": None, "mlflow_hook_names": ("acme-*",)}
    with pytest.raises(ValidationError, match="mlflow_hook_owner"):
        settings_of(**names)
    assert settings_of(**full, mlflow_hook_owner="key_1").mlflow_hook_owner == "key_1"


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The application on a socket."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, 60, "the API starts")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)


@pytest.mark.e2e
@pytest.mark.timeout(900)
def test_a_real_server_sends_it_and_what_it_could_not_send_is_found(
    app: FastAPI, hooked: Settings, tmp_path: Path
) -> None:
    env = {
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http",
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": Fernet.generate_key().decode(),
    }
    folder = tmp_path / "mlflow"
    folder.mkdir()
    state: State = app.state.updraft

    def targets() -> list[str]:
        with state.db.read() as session:
            return sorted(session.scalars(select(Job.target)))

    with mlflow_server(folder, f"file://{folder / 'a'}", env) as mlflow:
        client = MlflowClient(tracking_uri=mlflow, registry_uri=mlflow)
        client.create_registered_model("acme-chat")
        client.create_registered_model("acme-draft")
        with served(app) as url:
            client.create_webhook(
                name="updraft", url=url + PATH, events=["model_version.created"], secret=SECRET
            )
            register(client, "acme-chat")
            wait_until(targets, 60, "a job")
        register(client, "acme-chat")  # the API is away
        register(client, "acme-draft", draft_id="dft_1")
        settings = hooked.model_copy(update={"mlflow_tracking_uri": mlflow})
        watch = Watch(state.db, settings, Registry(settings))
        assert (watch.look(), watch.look()) == (1, 0)
    assert targets() == ["models:/acme-chat/1", "models:/acme-chat/2"]


def register(client: MlflowClient, name: str, **tags: str) -> None:
    client.create_model_version(name, source=f"s3://models/{name}", tags=tags, await_creation_for=0)
