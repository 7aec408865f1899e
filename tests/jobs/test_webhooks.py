from __future__ import annotations

import json
from datetime import timedelta
from ipaddress import IPv6Address
from typing import Any

import pytest
from sqlalchemy import select

from jobs import webhooks
from jobs.db import Database
from jobs.errors import Conflict, Invalid, InvalidSpec, NotFound, QuotaExceeded
from jobs.events import append_event
from jobs.models import Outbox, OutboxKind
from jobs.service import submit
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.webhooks import WAITS_S, Outcome
from jobs.webhooks_address import Place, check_url, choose, is_public
from jobs.webhooks_tables import DeliveryStatus, WebhookDelivery, WebhookEndpoint
from tests.jobs.conftest import Clock

URL = "https://hooks.example.com/x"


def _endpoint(db: Database, clock: Clock, **values: Any) -> WebhookEndpoint:
    given = {"events": [], "description": "", "all_owners": False, **values}
    with db.write() as session:
        return webhooks.add_endpoint(session, "key_a", URL, now=clock(), **given)


def _sent(db: Database) -> list[WebhookDelivery]:
    with db.read() as session:
        return list(session.scalars(select(WebhookDelivery).order_by(WebhookDelivery.id)))


def _hints(db: Database) -> list[Outbox]:
    query = select(Outbox).where(Outbox.kind == OutboxKind.WEBHOOK).order_by(Outbox.id)
    with db.read() as session:
        return list(session.scalars(query))


def _tell(db: Database, clock: Clock, type: str = "draft.promoted", owner: str = "key_a") -> None:
    with db.write() as session:
        webhooks.announce(session, type, owner, {"draft_id": "dft_1"}, job_id=None, now=clock())


def _record(db: Database, clock: Clock, outcome: Outcome) -> WebhookDelivery:
    (found,) = _sent(db)
    with db.write() as session:
        webhooks.record(session, found.id, outcome, clock())
    return _sent(db)[0]


def test_a_job_tells_its_owners_endpoints(db: Database, settings: Settings, clock: Clock) -> None:
    _endpoint(db, clock)
    with db.write() as session:
        spec = parse_spec({"target": "demo", "recipe": "quick", "labels": {"team": "a"}})
        job = submit(session, spec, settings=settings, now=clock(), owner="key_a").job
        submit(session, spec, settings=settings, now=clock(), owner="key_b")
    (found,) = _sent(db)
    body = json.loads(found.body)
    assert (found.type, body["type"]) == ("job.queued", "job.queued")
    assert body["data"]["job_id"] == job.id
    assert body["data"]["labels"] == {"team": "a"}
    assert [h.payload for h in _hints(db)] == [{"delivery_id": found.id}]


def test_progress_is_nothing_to_tell(db: Database, settings: Settings, clock: Clock) -> None:
    _endpoint(db, clock, events=["job.failed"])
    with db.write() as session:
        job = submit(session, parse_spec({"target": "demo"}), settings=settings, now=clock()).job
        append_event(session, job.id, "metrics", "step 1", now=clock())
    assert _sent(db) == []


def test_an_administrators_endpoint_hears_of_everybody(db: Database, clock: Clock) -> None:
    _endpoint(db, clock, all_owners=True)
    _tell(db, clock, owner="key_z")
    assert len(_sent(db)) == 1


def test_a_failure_is_tried_again_with_growing_waits_and_then_given_up(
    db: Database, clock: Clock
) -> None:
    _endpoint(db, clock)
    _tell(db, clock)
    for n, wait in enumerate(WAITS_S, 1):
        found = _record(db, clock, Outcome(status=500))
        assert (found.status, found.attempts) == (DeliveryStatus.PENDING, n)
        assert found.next_attempt_at is not None
        waited = (found.next_attempt_at - clock()).total_seconds()
        assert wait <= waited <= 1.2 * wait
        assert _hints(db)[-1].available_at == found.next_attempt_at
        clock.now = found.next_attempt_at
    found = _record(db, clock, Outcome(error="ConnectError"))
    assert (found.status, found.error) == (DeliveryStatus.FAILED, "ConnectError")
    assert len(_hints(db)) == len(WAITS_S) + 1
    with db.read() as session:
        endpoint = webhooks.get_endpoint(session, found.endpoint_id)
    assert "nothing was delivered" in (endpoint.disabled_reason or "")


def test_a_receiver_may_ask_for_a_longer_wait(db: Database, clock: Clock) -> None:
    _endpoint(db, clock)
    _tell(db, clock)
    found = _record(db, clock, Outcome(status=429, retry_after=900))
    assert found.next_attempt_at == clock() + timedelta(seconds=900)


def test_what_is_delivered_is_not_sent_again(db: Database, clock: Clock) -> None:
    _endpoint(db, clock)
    _tell(db, clock)
    found = _record(db, clock, Outcome(status=204))
    assert (found.status, found.next_attempt_at) == (DeliveryStatus.DELIVERED, None)
    assert _record(db, clock, Outcome(status=500)).attempts == 1
    assert len(_hints(db)) == 1


def test_gone_disables_the_endpoint(db: Database, clock: Clock) -> None:
    endpoint = _endpoint(db, clock)
    _tell(db, clock)
    assert _record(db, clock, Outcome(status=410)).status == DeliveryStatus.FAILED
    _tell(db, clock)
    assert len(_sent(db)) == 1
    with db.write() as session, pytest.raises(Conflict, match="410"):
        webhooks.test_endpoint(session, webhooks.get_endpoint(session, endpoint.id), clock())


def test_a_redelivery_has_the_same_id_and_all_attempts(db: Database, clock: Clock) -> None:
    endpoint = _endpoint(db, clock)
    _tell(db, clock)
    (found,) = _sent(db)
    with db.write() as session, pytest.raises(Conflict, match="still being tried"):
        webhooks.redeliver(session, webhooks.get_delivery(session, endpoint.id, found.id), clock())
    _record(db, clock, Outcome(status=200))
    with db.write() as session:
        again = webhooks.get_delivery(session, endpoint.id, found.id)
        webhooks.redeliver(session, again, clock())
    assert (_sent(db)[0].status, _sent(db)[0].attempts) == (DeliveryStatus.PENDING, 0)
    assert [h.payload["delivery_id"] for h in _hints(db)] == [found.id, found.id]


def test_endpoints_of_others_do_not_exist(db: Database, clock: Clock) -> None:
    endpoint = _endpoint(db, clock)
    with db.read() as session, pytest.raises(NotFound):
        webhooks.get_endpoint(session, endpoint.id, "key_b")


def test_there_are_not_endless_endpoints(
    db: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "MAX_ENDPOINTS", 1)
    _endpoint(db, clock)
    with pytest.raises(QuotaExceeded):
        _endpoint(db, clock)


def test_two_secrets_sign_for_a_day_after_a_rotation(db: Database, clock: Clock) -> None:
    endpoint = _endpoint(db, clock)
    webhooks.rotate_secret(endpoint, clock())
    assert webhooks.generations(endpoint, clock.forward(3600)) == [2, 1]
    assert webhooks.generations(endpoint, clock.forward(24 * 3600)) == [2]


def test_old_messages_go(db: Database, clock: Clock) -> None:
    _endpoint(db, clock)
    _tell(db, clock)
    clock.forward(31 * 86400)
    _tell(db, clock)
    with db.write() as session:
        webhooks.forget(session, clock())
    assert [d.created_at for d in _sent(db)] == [clock()]


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com",
        "https://",
        "https://a:b@hooks.example.com",
        "https://hooks.example.com/#x",
        "https://hooks.example.com/a b",
        "https://hooks.example.com:99999",
        "ftp://hooks.example.com",
        "https://localhost/x",
        "https://127.0.0.1/x",
        "https://[::1]/x",
        "https://169.254.169.254/latest/meta-data",
        "https://10.0.0.8",
        "https://[::ffff:10.0.0.8]",
        "https://[64:ff9b::a00:8]",
        "https://[2002:a00:8::]",
        "https://[fd00::1]",
        "https://" + "a" * 2048,
    ],
)
def test_urls_that_a_webhook_may_not_have(url: str) -> None:
    with pytest.raises(InvalidSpec):
        check_url(url, [])


def test_a_trusted_host_may_be_private_and_plain() -> None:
    place = check_url("http://ci.internal:8080/x", ["ci.internal:8080"])
    assert place == Place("ci.internal", 8080, trusted=True)
    assert choose(place, ["10.0.0.8"]) == "10.0.0.8"
    with pytest.raises(InvalidSpec):
        check_url("http://ci.internal:9090/x", ["ci.internal:8080"])


def test_an_address_is_chosen_only_when_all_are_public() -> None:
    place = check_url(URL, [])
    assert choose(place, ["93.184.215.14", "2606:2800::1"]) == "93.184.215.14"
    for addresses in (["93.184.215.14", "127.0.0.1"], ["fe80::1%eth0"], ["0.0.0.0"], []):  # noqa: S104
        with pytest.raises(Invalid):
            choose(place, addresses)


def test_teredo_leads_where_its_parts_lead() -> None:
    assert not is_public(IPv6Address("2001:0:5ef5:79fd:0:0:f5ff:fff7"))
    assert is_public(IPv6Address("2a00:1450:4001::1"))
