"""Sends webhooks: one attempt for each outbox record. Runs in threads of the relay.

Threads take one record each, so that a receiver that hangs holds up one of them, for `TOTAL_S`.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from datetime import datetime

import httpx

from jobs import webhooks
from jobs.db import Database
from jobs.errors import Invalid, InvalidSpec
from jobs.models import Outbox, OutboxKind
from jobs.outbox import relay
from jobs.settings import Settings
from jobs.webhooks import Outcome
from jobs.webhooks_address import check_url, choose
from jobs.webhooks_signing import signed_headers, signing_secret
from jobs.webhooks_tables import WebhookDelivery

log = logging.getLogger(__name__)

THREADS = 4
IDLE_S = 1.0
RETRY_S = 15.0
FORGET_S = 3600.0
TOTAL_S = 20.0
"""For one attempt, name and all: less than an outbox record is taken for."""
STEP_S = 10.0
CUT = 2048
"""Bytes of an answer that are kept."""

Resolve = Callable[[str, int], Awaitable[list[str]]]


async def resolve_name(host: str, port: int) -> list[str]:
    """The addresses of a host."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


class Sender:
    """Makes attempts. `send` is what the outbox's relay calls."""

    def __init__(
        self,
        db: Database,
        settings: Settings,
        clock: Callable[[], datetime],
        resolve: Resolve = resolve_name,
    ) -> None:
        self.db, self.settings, self.clock, self.resolve = db, settings, clock, resolve
        self._tls = ssl.create_default_context()
        self._agent = f"updraft/{importlib.metadata.version('updraft')}"

    def send(self, record: Outbox) -> None:
        """Make the attempt that a record asks for, and write down how it went."""
        delivery_id = str(record.payload["delivery_id"])
        with self.db.read() as session:
            found = webhooks.to_send(session, delivery_id)
        if found is None:
            return
        if found.endpoint.disabled_at is not None:
            outcome = Outcome(error=f"not sent: {found.endpoint.disabled_reason}")
        else:
            outcome = asyncio.run(self._attempt(found))
        with self.db.write() as session:
            webhooks.record(session, delivery_id, outcome, self.clock())
        level = logging.INFO if outcome.delivered else logging.WARNING
        log.log(level, "webhook %s: %s", delivery_id, outcome.status or outcome.error)

    async def _attempt(self, found: WebhookDelivery) -> Outcome:
        try:
            async with asyncio.timeout(TOTAL_S):
                return await self._post(found)
        except TimeoutError:
            return Outcome(error=f"no answer within {TOTAL_S:g} s")
        except InvalidSpec as e:
            return Outcome(error="; ".join(one["detail"] for one in e.errors))
        except Invalid as e:
            return Outcome(error=str(e))
        except (httpx.HTTPError, httpx.InvalidURL, OSError, UnicodeError) as e:
            return Outcome(error=f"{type(e).__name__}: {e}"[:500])

    async def _post(self, found: WebhookDelivery) -> Outcome:
        """Post to the address that was checked; its certificate is still the name's."""
        url = httpx.URL(found.endpoint.url)
        place = check_url(found.endpoint.url, self.settings.webhook_hosts)
        address = choose(place, await self.resolve(place.host, place.port))
        body, now = found.body.encode(), self.clock()
        secrets = [
            signing_secret(self.settings, found.endpoint_id, generation)
            for generation in webhooks.generations(found.endpoint, now)
        ]
        headers = {
            **signed_headers(secrets, found.id, body, now),
            "host": url.netloc.decode(),
            "content-type": "application/json",
            "user-agent": self._agent,
        }
        # No redirects: they could lead anywhere. No proxy: it would resolve the name itself.
        client = httpx.AsyncClient(
            verify=self._tls, timeout=STEP_S, trust_env=False, follow_redirects=False
        )
        async with (
            client,
            client.stream(
                "POST",
                url.copy_with(host=address),
                content=body,
                headers=headers,
                extensions={"sni_hostname": place.host},
            ) as answer,
        ):
            return Outcome(
                answer.status_code,
                response=await _beginning(answer),
                retry_after=_seconds(answer.headers.get("retry-after")),
            )


def webhook_threads(
    db: Database, settings: Settings, clock: Callable[[], datetime], stop: threading.Event
) -> list[threading.Thread]:
    """Start the threads that send until told to stop."""
    sender = Sender(db, settings, clock)
    threads = [
        threading.Thread(target=_loop, args=(db, sender, clock, stop, i == 0), daemon=True)
        for i in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    return threads


def _loop(
    db: Database,
    sender: Sender,
    clock: Callable[[], datetime],
    stop: threading.Event,
    forgets: bool,
) -> None:
    until_forget = 0.0
    while not stop.is_set():
        wait = IDLE_S
        try:
            sent = relay(db, OutboxKind.WEBHOOK, sender.send, clock=clock, limit=1)
            wait = 0.0 if sent else wait
            if forgets and until_forget <= 0:
                with db.write() as session:
                    webhooks.forget(session, clock())
                until_forget = FORGET_S
        except Exception:  # the loop outlives whatever its database does
            log.exception("webhook round failed; trying again in %g s", RETRY_S)
            wait = RETRY_S
        stop.wait(wait)
        until_forget -= wait


async def _beginning(answer: httpx.Response) -> str:
    found = b""
    async for chunk in answer.aiter_bytes():
        found += chunk
        if len(found) >= CUT:
            break
    return found[:CUT].decode(errors="replace").replace("\x00", "\ufffd")


def _seconds(retry_after: str | None) -> float | None:
    """Seconds of a Retry-After; a date is not worth a parser, the usual waits hold then."""
    return float(retry_after) if retry_after and retry_after.isdecimal() else None
