"""The Python client of the API: `Client`, and `AsyncClient` with the same methods to await.

    from api.client import Client

    with Client("https://updraft.example.com", api_key=key) as updraft:
        job, _ = updraft.submit({"target": "acme/model@4f2a91"}, idempotency_key="acme-4f2a91")
        for event in updraft.stream(job.id):
            print(event.message)

The CLI is built on it. `asynchronous/` is written by hand, `synchronous/` from it by
`python -m api.generate`.
"""

from api.client.asynchronous.client import AsyncClient
from api.client.errors import ApiError, ClientError, ServiceUnreachable
from api.client.plumbing import TERMINAL
from api.client.receive import WebhookRefused, verify_webhook
from api.client.synchronous.client import Client

__all__ = [
    "TERMINAL",
    "ApiError",
    "AsyncClient",
    "Client",
    "ClientError",
    "ServiceUnreachable",
    "WebhookRefused",
    "verify_webhook",
]
