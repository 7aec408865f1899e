# Written from ../asynchronous by `python -m api.generate`.
"""Jobs: submit, follow, steer, and what they leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from api.client.plumbing import given, matching, parsed, part
from api.client.synchronous.connection import Connection
from api.schemas import (
    CheckpointList,
    CheckpointView,
    DownloadUrl,
    EventPage,
    EventView,
    JobPage,
    JobView,
    MetricList,
    StoredFiles,
    Validation,
)

STREAM_TIMEOUT_S = 60.0
"""Four of the comments that keep an idle stream open."""


class Jobs(Connection):
    """The part of the client that is about jobs."""

    def submit(
        self, spec: dict[str, Any], *, idempotency_key: str | None = None
    ) -> tuple[JobView, bool]:
        """Submit a job.

        Returns:
            The job, and whether it is an earlier one with the same idempotency key.
        """
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        response = self._send("POST", "/v1/jobs", json=spec, headers=headers)
        return parsed(JobView, response), response.headers.get("idempotent-replayed") == "true"

    def validate(
        self,
        spec: dict[str, Any],
        *,
        gpu: str | None = None,
        gpus: int | None = None,
        price: float | None = None,
    ) -> Validation:
        """What `submit` would do with this spec, and what it would take; nothing is stored.

        Args:
            gpu: device to plan for, such as `h100`; the service's own cores when empty.
            gpus: how many.
            price: of an hour of all of them.
        """
        params = given(gpu=gpu, gpus=gpus, price=price)
        return self._post(Validation, "/v1/jobs:validate", json=spec, params=params)

    def job(self, job_id: str) -> JobView:
        """A job as it is now; costs little when it has not changed since this client last asked."""
        etag, known = self._seen.get(job_id, ("", None))
        headers = {"if-none-match": etag} if known else {}
        response = self._send("GET", f"/v1/jobs/{part(job_id)}", headers=headers)
        if response.status_code == httpx.codes.NOT_MODIFIED and known:
            return known
        job = parsed(JobView, response)
        self._seen[job_id] = (response.headers.get("etag", ""), job)
        return job

    def jobs(
        self,
        *,
        status: str | None = None,
        base_model: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 20,
        after: str = "",
    ) -> JobPage:
        """Jobs, newest first."""
        params = given(status=status, base_model=base_model, limit=limit, after=after)
        params |= {f"label.{name}": value for name, value in (labels or {}).items()}
        return self._get(JobPage, "/v1/jobs", **params)

    def cancel(self, job_id: str, *, if_match: str | None = None) -> JobView:
        """Ask a job to stop. Asking twice is the same as asking once."""
        return self._job_action(job_id, "cancel", if_match)

    def retry(self, job_id: str, *, if_match: str | None = None) -> JobView:
        """Run a failed or cancelled job again, from its last good stage."""
        return self._job_action(job_id, "retry", if_match)

    def pause(self, job_id: str, *, if_match: str | None = None) -> JobView:
        """Keep a job from going on; what runs saves its work first."""
        return self._job_action(job_id, "pause", if_match)

    def resume(self, job_id: str, *, if_match: str | None = None) -> JobView:
        """Let a paused job go on from where it was."""
        return self._job_action(job_id, "resume", if_match)

    def prioritise(self, job_id: str, priority: int, *, if_match: str | None = None) -> JobView:
        """Change which of the waiting jobs goes first; higher is earlier."""
        return self._job_action(job_id, "priority", if_match, json={"priority": priority})

    def events(self, job_id: str, *, after: int = 0, limit: int = 100) -> EventPage:
        """Events with a `seq` greater than `after`."""
        path = f"/v1/jobs/{part(job_id)}/events"
        return self._get(EventPage, path, after=after, limit=limit)

    def stream(self, job_id: str, *, after: int = 0) -> Iterator[EventView]:
        """Events as they happen, until the job's last one. Raises if the connection breaks."""
        headers = {"last-event-id": str(after)} if after else {}
        path = f"/v1/jobs/{part(job_id)}/events/stream"
        with self._streamed(path, headers=headers, timeout=STREAM_TIMEOUT_S) as response:
            for line in response.iter_lines():
                if line.startswith("data:"):
                    yield EventView.model_validate_json(line.removeprefix("data:"))

    def checkpoints(self, job_id: str) -> list[CheckpointView]:
        """Checkpoints, oldest first."""
        found = self._get(CheckpointList, f"/v1/jobs/{part(job_id)}/checkpoints")
        return found.data

    def metrics(self, job_id: str, *, name: str | None = None, points: int = 500) -> MetricList:
        """Metrics over the steps, with so many points a series at most."""
        params = given(name=name, points=points)
        return self._get(MetricList, f"/v1/jobs/{part(job_id)}/metrics", **params)

    def artifacts(self, job_id: str) -> list[str]:
        """Names that `artifact` takes."""
        found = self._get(StoredFiles, f"/v1/jobs/{part(job_id)}/artifacts")
        return [file.name for file in found.data]

    def artifact(self, job_id: str, name: str) -> bytes:
        """One of the names in `job.artifacts`."""
        path = f"/v1/jobs/{part(job_id)}/artifacts/{quote(name)}"
        found = self._send("GET", path)
        return found.content

    def artifact_url(self, job_id: str, name: str) -> DownloadUrl:
        """A link to an artifact."""
        path = f"/v1/jobs/{part(job_id)}/artifacts/{quote(name)}/download-url"
        return self._absolute(self._post(DownloadUrl, path))

    def logs(self, job_id: str) -> list[str]:
        """Names that `log` takes: what the stages that have ended printed."""
        found = self._get(StoredFiles, f"/v1/jobs/{part(job_id)}/logs")
        return [file.name for file in found.data]

    def log(self, job_id: str, name: str) -> bytes:
        """What one stage printed."""
        found = self._send("GET", f"/v1/jobs/{part(job_id)}/logs/{part(name)}")
        return found.content

    def log_url(self, job_id: str, name: str) -> DownloadUrl:
        """A link to a log."""
        path = f"/v1/jobs/{part(job_id)}/logs/{part(name)}/download-url"
        return self._absolute(self._post(DownloadUrl, path))

    def _job_action(
        self, job_id: str, action: str, if_match: str | None, **options: Any
    ) -> JobView:
        path = f"/v1/jobs/{part(job_id)}/{action}"
        return self._post(JobView, path, headers=matching(if_match), **options)

    def _absolute(self, link: DownloadUrl) -> DownloadUrl:
        url = self.url + link.url if link.url.startswith("/") else link.url
        return link.model_copy(update={"url": url})
