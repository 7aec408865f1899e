"""The Python client of the API; the CLI is built on it.

ClientError
├── ServiceUnreachable   no answer: not running, wrong URL, or a network failure
└── ApiError             an answer that is not a success; `problem` holds its details
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from api.schemas import (
    Answer,
    DraftFile,
    DraftFiles,
    DraftPage,
    DraftView,
    EventPage,
    EventView,
    Health,
    JobPage,
    JobView,
    Problem,
    Readiness,
    Validation,
)

TERMINAL = frozenset({"succeeded", "failed", "cancelled"})
"""Statuses that a job never leaves."""

A = TypeVar("A", bound=Answer)


class ClientError(Exception):
    """Base of what the client raises."""


class ServiceUnreachable(ClientError):
    """Nothing answered at the URL."""


class ApiError(ClientError):
    """The service answered with a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        lines = [problem.detail or problem.title]
        lines += [f"{e.pointer}: {e.detail}" for e in problem.errors]
        super().__init__("\n".join(lines))

    @property
    def status(self) -> int:
        return self.problem.status


class Client:
    """Talks to one Updraft service.

    Args:
        url: base URL, such as `http://127.0.0.1:8300`.
        api_key: needed in full mode.
        timeout_s: for one request, not for a stream.
        transport: replaces the network, for tests.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # trust_env off: a proxy of the environment must not see loopback traffic or the key.
        self._http = httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=timeout_s,
            transport=transport,
            trust_env=False,
        )
        self._seen: dict[str, tuple[str, JobView]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # Jobs

    def submit(
        self, spec: dict[str, Any], *, idempotency_key: str | None = None
    ) -> tuple[JobView, bool]:
        """Submit a job.

        Returns:
            The job, and whether it is an earlier one with the same idempotency key.
        """
        headers = {"idempotency-key": idempotency_key} if idempotency_key else {}
        response = self._send("POST", "/v1/jobs", json=spec, headers=headers)
        return _parsed(JobView, response), response.headers.get("idempotent-replayed") == "true"

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
        params = _given(gpu=gpu, gpus=gpus, price=price)
        response = self._send("POST", "/v1/jobs:validate", json=spec, params=params)
        return _parsed(Validation, response)

    def job(self, job_id: str) -> JobView:
        """A job as it is now; costs little when it has not changed since this client last asked."""
        etag, known = self._seen.get(job_id, ("", None))
        headers = {"if-none-match": etag} if known else {}
        response = self._send("GET", f"/v1/jobs/{_part(job_id)}", headers=headers)
        if response.status_code == httpx.codes.NOT_MODIFIED and known:
            return known
        job = _parsed(JobView, response)
        self._seen[job_id] = (response.headers.get("etag", ""), job)
        return job

    def jobs(self, *, status: str | None = None, limit: int = 20, after: str = "") -> JobPage:
        """Jobs, newest first."""
        params = _given(status=status, limit=limit, after=after)
        return _parsed(JobPage, self._send("GET", "/v1/jobs", params=params))

    def cancel(self, job_id: str) -> JobView:
        """Ask a job to stop. Asking twice is the same as asking once."""
        return _parsed(JobView, self._send("POST", f"/v1/jobs/{_part(job_id)}/cancel"))

    def events(self, job_id: str, *, after: int = 0, limit: int = 100) -> EventPage:
        """Events with a `seq` greater than `after`."""
        params = _given(after=after, limit=limit)
        response = self._send("GET", f"/v1/jobs/{_part(job_id)}/events", params=params)
        return _parsed(EventPage, response)

    def stream(self, job_id: str, *, after: int = 0) -> Iterator[EventView]:
        """Events as they happen, until the job's last one. Raises if the connection breaks."""
        headers = {"last-event-id": str(after)} if after else {}
        path = f"/v1/jobs/{_part(job_id)}/events/stream"
        try:
            with self._http.stream("GET", path, headers=headers, timeout=60) as response:
                if not response.is_success:
                    response.read()
                    raise _api_error(response)
                for line in response.iter_lines():
                    if line.startswith("data:"):
                        yield EventView.model_validate_json(line.removeprefix("data:"))
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def artifact(self, job_id: str, name: str) -> bytes:
        """One of the names in `job.artifacts`."""
        path = f"/v1/jobs/{_part(job_id)}/artifacts/{quote(name)}"
        return self._send("GET", path).content

    # Drafts

    def drafts(
        self,
        *,
        base_model: str | None = None,
        name: str | None = None,
        alias: str | None = None,
        limit: int = 20,
        after: str = "",
    ) -> DraftPage:
        """Drafts, newest first."""
        params = _given(base_model=base_model, name=name, alias=alias, limit=limit, after=after)
        return _parsed(DraftPage, self._send("GET", "/v1/drafts", params=params))

    def draft(self, draft_id: str) -> DraftView:
        return _parsed(DraftView, self._send("GET", f"/v1/drafts/{_part(draft_id)}"))

    def draft_files(self, draft_id: str) -> list[DraftFile]:
        response = self._send("GET", f"/v1/drafts/{_part(draft_id)}/files")
        return _parsed(DraftFiles, response).data

    def download(self, draft_id: str, file: DraftFile, destination: Path) -> None:
        """Write one file of a draft; nothing is left at `destination` unless its hash is right.

        Raises:
            ClientError: the bytes that came are not the ones the draft's manifest names.
        """
        path = f"/v1/drafts/{_part(draft_id)}/files/{quote(file.path)}"
        destination.parent.mkdir(parents=True, exist_ok=True)
        partial = destination.with_name(destination.name + ".part")
        digest = hashlib.sha256()
        try:
            with self._http.stream("GET", path) as response, partial.open("wb") as out:
                if not response.is_success:
                    response.read()
                    raise _api_error(response)
                for chunk in response.iter_bytes(1 << 20):
                    digest.update(chunk)
                    out.write(chunk)
            if digest.hexdigest() != file.sha256:
                raise ClientError(
                    f"{file.path}: expected sha256 {file.sha256}, got {digest.hexdigest()}. "
                    "The file was not kept; pull again, and look at the store if it repeats."
                )
            partial.replace(destination)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        finally:
            partial.unlink(missing_ok=True)

    # Health

    def live(self) -> Health:
        return _parsed(Health, self._send("GET", "/livez"))

    def ready(self) -> Readiness:
        """Readiness, also when it is not ready."""
        response = self._request("GET", "/readyz")
        return _parsed(Readiness, response)

    # Plumbing

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        response = self._request(method, path, **options)
        if not (response.is_success or response.status_code == httpx.codes.NOT_MODIFIED):
            raise _api_error(response)
        return response

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ServiceUnreachable:
        return ServiceUnreachable(f"no answer from {self.url} ({error or type(error).__name__})")


def _parsed(model: type[A], response: httpx.Response) -> A:
    try:
        return model.model_validate_json(response.content)
    except ValidationError as error:
        raise ClientError(
            f"{response.request.url} did not answer like an Updraft service "
            f"(HTTP {response.status_code}); is another program on that port?"
        ) from error


def _api_error(response: httpx.Response) -> ApiError:
    fallback = Problem(title=response.reason_phrase, status=response.status_code)
    try:
        return ApiError(Problem.model_validate(json.loads(response.content)))
    except (ValueError, ValidationError):
        return ApiError(fallback)


def _given(**params: Any) -> dict[str, Any]:
    return {k: v for k, v in params.items() if v not in (None, "")}


def _part(text: str) -> str:
    return quote(text, safe="")
