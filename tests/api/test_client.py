"""The client has a method for every operation, waits or is awaited, and hides no failure."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest
from fastapi.testclient import TestClient

from api.client import ApiError, AsyncClient, Client, ClientError
from api.generate import ASYNCHRONOUS, SYNCHRONOUS, synchronous_text
from api.schemas import DraftFile
from jobs.webhook_events import EventType
from tests.api.conftest import BASE_URL

METHODS = {
    "listEvents": "events", "streamEvents": "stream", "getArtifact": "artifact",
    "getLog": "log", "submitJob": "submit", "validateJob": "validate", "listJobs": "jobs",
    "getJob": "job", "cancelJob": "cancel", "retryJob": "retry", "pauseJob": "pause",
    "resumeJob": "resume", "prioritiseJob": "prioritise", "listCheckpoints": "checkpoints",
    "getMetrics": "metrics", "listArtifacts": "artifacts", "linkArtifact": "artifact_url",
    "listLogs": "logs", "linkLog": "log_url", "listDrafts": "drafts", "getDraft": "draft",
    "promoteDraft": "promote", "rollBackDraft": "roll_back", "deprecateDraft": "deprecate",
    "reinstateDraft": "reinstate", "listDraftFiles": "draft_files", "getDraftFile": "download",
    "linkDraftFile": "draft_file_url", "listWebhookEndpoints": "webhook_endpoints",
    "createWebhookEndpoint": "create_webhook_endpoint", "getWebhookEndpoint": "webhook_endpoint",
    "updateWebhookEndpoint": "update_webhook_endpoint",
    "deleteWebhookEndpoint": "delete_webhook_endpoint",
    "rotateWebhookSecret": "rotate_webhook_secret", "testWebhookEndpoint": "test_webhook_endpoint",
    "listWebhookDeliveries": "webhook_deliveries", "getWebhookDelivery": "webhook_delivery",
    "redeliverWebhook": "redeliver", "listKeys": "keys", "createKey": "create_key",
    "getKey": "key", "rotateKey": "rotate_key", "revokeKey": "revoke_key", "getUsage": "usage",
    "listRecipes": "recipes", "checkTarget": "supported", "live": "live", "ready": "ready",
    "attach": "attach", "getAttachment": "attachment", "observeDraft": "observe",
    "evaluateDraft": "evaluate", "listEvaluations": "evaluations",
    "setHubToken": "set_hub_token", "removeHubToken": "remove_hub_token",
}  # fmt: skip
OF_OTHER_SERVERS = {"takeMlflowEvent"}
"""Operations that MLflow calls, and no user."""


def test_every_operation_has_a_method(web: TestClient) -> None:
    paths = web.get("/openapi.json").json()["paths"].values()
    operations = {o["operationId"] for methods in paths for o in methods.values()}
    assert operations == set(METHODS) | OF_OTHER_SERVERS
    for name in METHODS.values():
        assert callable(getattr(Client, name)), name


def test_both_clients_have_the_same_methods() -> None:
    def signatures(client: type) -> dict[str, Any]:
        found = inspect.getmembers(client, inspect.isfunction)
        return {n: list(inspect.signature(f).parameters) for n, f in found if n[0] != "_"}

    waits, awaited = signatures(Client), signatures(AsyncClient)
    awaited["close"] = awaited.pop("aclose")
    assert waits == awaited


@pytest.mark.parametrize("name", sorted(p.name for p in ASYNCHRONOUS.glob("*.py")))
def test_the_synchronous_client_is_current(name: str) -> None:
    expected = synchronous_text(ASYNCHRONOUS / name)
    assert (SYNCHRONOUS / name).read_text() == expected, "run: python -m api.generate"


def test_the_client_reaches_what_a_job_left(client: Client, succeeded: str) -> None:
    assert client.artifacts(succeeded) == ["report.html", "report.md"]
    link = client.artifact_url(succeeded, "report.md")
    assert link.url == f"{BASE_URL}/v1/jobs/{succeeded}/artifacts/report.md"
    assert client.artifact(succeeded, "report.md").startswith(b"# Report")
    assert client.logs(succeeded) == []
    assert client.checkpoints(succeeded) == []
    assert client.metrics(succeeded).data == []
    (draft,) = client.drafts(base_model="demo", revision="sha256:abc").data
    assert client.draft_file_url(draft.id, "draft/config.json").url.startswith(BASE_URL)
    assert client.usage().jobs == {"succeeded": 1}
    assert "quick" in [recipe.name for recipe in client.recipes()]


def test_the_client_steers_jobs(client: Client, queued: str) -> None:
    assert client.pause(queued).status == "paused"
    assert client.resume(queued).status == "queued"
    assert client.prioritise(queued, 7).priority == 7
    with pytest.raises(ApiError) as refused:
        client.retry(queued)
    assert refused.value.status == 409
    client.cancel(queued)
    assert client.retry(queued).status == "queued"


def test_a_stale_etag_is_refused(client: Client, succeeded: str) -> None:
    draft, etag = client.draft_with_etag(succeeded)
    with pytest.raises(ApiError) as refused:
        client.promote(draft.id, if_match='"another"')
    assert refused.value.status == 412
    assert client.promote(draft.id, if_match=etag).alias == "champion"


def test_a_file_that_came_wrong_is_not_kept(client: Client, succeeded: str, tmp_path: Path) -> None:
    file = DraftFile(path="draft/config.json", size=2, sha256="0" * 64)
    with pytest.raises(ClientError, match="expected sha256"):
        client.download(succeeded, file, tmp_path / "config.json")
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]


def test_the_asynchronous_client_works_too(web: TestClient, succeeded: str, tmp_path: Path) -> None:
    async def use(client: AsyncClient) -> None:
        job = await client.job(succeeded)
        assert await client.job(succeeded) is job
        assert [e.type async for e in client.stream(succeeded)] == ["job.queued", "job.succeeded"]
        (file, _) = await client.draft_files(succeeded)
        await client.download(succeeded, file, tmp_path / "x")
        assert (tmp_path / "x").stat().st_size == file.size
        with pytest.raises(ApiError):
            await client.job("job_no")

    _awaited(web, use)


def test_webhook_endpoints_are_made_and_tested(web: TestClient) -> None:
    async def use(client: AsyncClient) -> None:
        made = await client.create_webhook_endpoint(
            "https://ci.example.com/x", events=["job.failed"]
        )
        assert made.secret.startswith("whsec_")
        (listed,) = await client.webhook_endpoints()
        assert (listed.id, listed.events, listed.enabled) == (made.id, ["job.failed"], True)
        sent = await client.test_webhook_endpoint(made.id)
        assert (sent.type, sent.status) == ("webhook.test", "pending")
        assert (await client.webhook_deliveries(made.id)).data == [sent]
        assert (await client.webhook_delivery(made.id, sent.id)) == sent
        with pytest.raises(ApiError, match="still being tried"):
            await client.redeliver(made.id, sent.id)
        rotated = await client.rotate_webhook_secret(made.id)
        assert rotated.secret != made.secret
        off = await client.update_webhook_endpoint(made.id, enabled=False)
        assert (off.enabled, off.url) == (False, made.url)
        with pytest.raises(ApiError, match="disabled"):
            await client.test_webhook_endpoint(made.id)
        await client.delete_webhook_endpoint(made.id)
        with pytest.raises(ApiError) as gone:
            await client.webhook_endpoint(made.id)
        assert gone.value.status == 404

    _awaited(web, use)


def test_endpoints_can_ask_for_every_type_alone(client: Client) -> None:
    for event in get_args(EventType):
        made = client.create_webhook_endpoint("https://ci.example.com/x", events=[event])
        assert made.events == [event]
        client.delete_webhook_endpoint(made.id)


def _awaited(web: TestClient, use: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def run() -> None:
        async with AsyncClient(BASE_URL, transport=httpx.ASGITransport(web.app)) as client:
            await use(client)

    asyncio.run(run())
