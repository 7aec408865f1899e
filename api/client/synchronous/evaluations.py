# Written from ../asynchronous by `python -m api.generate`.
"""Drafts that are measured again."""

from __future__ import annotations

from typing import Any

from api.client.plumbing import given, parsed, part
from api.client.synchronous.attachments import Attachments
from api.schemas import EvaluationPage, JobView


class Evaluations(Attachments):
    """The part of the client that is about measuring drafts."""

    def evaluate(
        self,
        ref: str,
        *,
        target: str | None = None,
        against: str | None = None,
        idempotency_key: str | None = None,
        **how: Any,
    ) -> tuple[JobView, bool]:
        """Measure a registered draft.

        Args:
            target: another checkpoint; the draft's own when None.
            against: a draft to measure beside it; `champion` is that of its own name.
            how: `prompts`, `count`, `max_new_tokens`, `tolerance`, `parity` and `gates`.

        Returns:
            The job, and whether it is an earlier one with the same idempotency key.
        """
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        body = given(target=target, against=against, **how)
        path = f"/v1/drafts/{part(ref)}/evaluations"
        response = self._send("POST", path, json=body, headers=headers)
        return parsed(JobView, response), response.headers.get("idempotent-replayed") == "true"

    def evaluations(self, ref: str, *, limit: int = 20, after: str = "") -> EvaluationPage:
        """Evaluations of a draft, newest first."""
        path = f"/v1/drafts/{part(ref)}/evaluations"
        return self._get(EvaluationPage, path, **given(limit=limit, after=after))
