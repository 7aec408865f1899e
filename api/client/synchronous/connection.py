# Written from ../asynchronous by `python -m api.generate`.
"""One service and how it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import httpx

from api.client.errors import ServiceUnreachable
from api.client.plumbing import A, api_error, parsed
from api.schemas import JobView


class Connection:
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

    def _get(self, model: type[A], path: str, **params: Any) -> A:
        return parsed(model, self._send("GET", path, params=params))

    def _post(self, model: type[A], path: str, **options: Any) -> A:
        return parsed(model, self._send("POST", path, **options))

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        response = self._request(method, path, **options)
        if not (response.is_success or response.status_code == httpx.codes.NOT_MODIFIED):
            raise api_error(response)
        return response

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    @contextmanager
    def _streamed(self, path: str, **options: Any) -> Iterator[httpx.Response]:
        """A successful answer whose body is still to be read."""
        try:
            with self._http.stream("GET", path, **options) as response:
                if not response.is_success:
                    response.read()
                    raise api_error(response)
                yield response
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ServiceUnreachable:
        return ServiceUnreachable(f"no answer from {self.url} ({error or type(error).__name__})")
