# Written from ../asynchronous by `python -m api.generate`.
"""Attachments, and what serving engines observe of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from api.client.plumbing import parsed, part
from api.client.synchronous.drafts import Drafts
from api.schemas import AttachmentView, ObservationView


class Attachments(Drafts):
    """The part of the client that is about checkpoints that get their drafts."""

    def attach(
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
        response = self._send("POST", "/v1/attachments", json=body, headers=headers)
        replayed = response.headers.get("idempotent-replayed") == "true"
        return parsed(AttachmentView, response), replayed

    def attachment(self, attachment_id: str) -> AttachmentView:
        """An attachment by its id or its job's."""
        return self._get(AttachmentView, f"/v1/attachments/{part(attachment_id)}")

    def observe(
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
        return self._post(ObservationView, f"/v1/drafts/{part(ref)}/observations", json=body)
