"""Webhooks to a real server on loopback, which the settings of the tests trust."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from api.client import WebhookRefused, verify_webhook
from jobs import webhooks
from jobs.base import Base
from jobs.db import Database
from jobs.models import OutboxKind
from jobs.outbox import relay
from jobs.settings import Settings
from jobs.webhooks_address import Place
from jobs.webhooks_signing import shown, signing_secret
from jobs.webhooks_tables import DeliveryStatus, WebhookDelivery
from tests.settings import settings_of
from workers.webhooks import Sender

NOW = datetime(2026, 3, 1, tzinfo=UTC)


class Receiver(ThreadingHTTPServer):
    """Keeps what it gets, and answers what it is told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, b"thanks")


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append(({k.lower(): v for k, v in self.headers.items()}, body))
        status, headers, text = self.server.answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def full(tmp_path: Path, receiver: Receiver) -> Settings:
    trusted = (f"hook.test:{receiver.server_port}",)
    return settings_of(home=tmp_path / "home", webhook_hosts=trusted)


@pytest.fixture
def db(full: Settings) -> Iterator[Database]:
    database = Database(full.database_url)
    Base.metadata.create_all(database.engine)
    yield database
    database.close()


Attempt = Callable[..., WebhookDelivery]


@pytest.fixture
def attempt(db: Database, full: Settings, receiver: Receiver) -> Attempt:
    """Tell of a draft and make one attempt to deliver that."""

    def attempt(host: str = "hook.test", leads_to: str = "127.0.0.1", rotated: bool = False) -> Any:
        async def resolve(_: str, __: int) -> list[str]:
            return [leads_to]

        url = f"http://{host}:{receiver.server_port}/hook?a=b"
        with db.write() as session:
            endpoint = webhooks.add_endpoint(
                session, "key_a", url, events=[], description="", all_owners=False, now=NOW
            )
            if rotated:
                webhooks.rotate_secret(endpoint, NOW)
            data = {"draft_id": "dft_1"}
            webhooks.announce(session, "draft.promoted", "key_a", data, job_id=None, now=NOW)
        sender = Sender(db, full, lambda: NOW, resolve)
        assert relay(db, OutboxKind.WEBHOOK, sender.send, clock=lambda: NOW) == 1
        with db.read() as session:
            (found,) = webhooks.list_deliveries(session, endpoint.id).items
        return found

    return attempt


def test_a_delivery_is_signed_and_arrives_once(
    attempt: Attempt, full: Settings, receiver: Receiver
) -> None:
    found = attempt()
    assert (found.status, found.response) == (DeliveryStatus.DELIVERED, "thanks")
    ((headers, body),) = receiver.got
    assert headers["host"] == f"hook.test:{receiver.server_port}"
    assert headers["webhook-id"] == found.id
    assert headers["content-type"] == "application/json"
    secret = shown(signing_secret(full, found.endpoint_id, 1))
    message = verify_webhook(secret, headers, body, now=NOW)
    assert (message["type"], message["data"]) == ("draft.promoted", {"draft_id": "dft_1"})
    with pytest.raises(WebhookRefused, match="signature"):
        verify_webhook(secret, headers, body + b" ", now=NOW)
    with pytest.raises(WebhookRefused, match="old"):
        verify_webhook(secret, headers, body, now=datetime(2026, 3, 2, tzinfo=UTC))


def test_both_secrets_verify_after_a_rotation(
    attempt: Attempt, full: Settings, receiver: Receiver
) -> None:
    found = attempt(rotated=True)
    ((headers, body),) = receiver.got
    for generation in (1, 2):
        secret = shown(signing_secret(full, found.endpoint_id, generation))
        verify_webhook(secret, headers, body, now=NOW)


def test_a_redirect_is_a_failure_and_not_followed(attempt: Attempt, receiver: Receiver) -> None:
    receiver.answer = (302, {"location": f"http://127.0.0.1:{receiver.server_port}/else"}, b"")
    found = attempt()
    assert (found.status, found.error) == (DeliveryStatus.PENDING, "HTTP 302")
    assert len(receiver.got) == 1


def test_an_answer_is_cut_and_its_wait_kept(attempt: Attempt, receiver: Receiver) -> None:
    receiver.answer = (503, {"retry-after": "120"}, b"\x00" + b"x" * 5000)
    found = attempt()
    assert found.response is not None
    assert (len(found.response), found.response[0]) == (2048, "\ufffd")
    assert found.next_attempt_at == NOW + timedelta(seconds=120)


def test_a_name_that_leads_inside_is_not_connected_to(
    attempt: Attempt, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name was public when the endpoint was made, and is not any more (DNS rebinding)."""
    place = Place("rebound.test", receiver.server_port, trusted=False)
    monkeypatch.setattr("workers.webhooks.check_url", lambda *_: place)
    found = attempt(host="rebound.test")
    assert "not public" in (found.error or "")
    assert receiver.got == []


def test_nobody_listens(attempt: Attempt, receiver: Receiver) -> None:
    found = attempt(leads_to="127.0.0.2")
    assert "ConnectError" in (found.error or "")
    assert found.status == DeliveryStatus.PENDING
