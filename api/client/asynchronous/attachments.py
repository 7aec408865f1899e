"""Attachments, and what serving engines observe of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.client.asynchronous.drafts import Drafts
from api.client.plumbing import parsed, part
from api.schemas import AttachmentView, ObservationView


class Attachments(Drafts):
    """The part of the client that is about checkpoints that get their drafts."""

    async def attach(
        self,
        target: str,
        policy: dict[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> tuple[AttachmentView, bool]:
        """Have a checkpoint get its draft.

        Args:
            policy: a job without its target, and `attach`.

        Returns:
            The attachment, and whether it is an earlier one with the same idempotency key.
        """
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        body = {"target": target, "policy": policy or {}}
        response = await self._send("POST", "/v1/attachments", json=body, headers=headers)
        replayed = response.headers.get("idempotent-replayed") == "true"
        return parsed(AttachmentView, response), replayed

    async def attachment(self, attachment_id: str) -> AttachmentView:
        """An attachment by its id or its job's."""
        return await self._get(AttachmentView, f"/v1/attachments/{part(attachment_id)}")

    async def observe(
        self,
        ref: str,
        source: str,
        *,
        rounds: int,
        accepted: int,
        accepted_at: Sequence[int] = (),
    ) -> ObservationView:
        """Report an engine's counters of a draft that it serves; they rise while it runs."""
        body = {
            "source": source,
            "rounds": rounds,
            "accepted": accepted,
            "accepted_at": list(accepted_at),
        }
        return await self._post(ObservationView, f"/v1/drafts/{part(ref)}/observations", json=body)
