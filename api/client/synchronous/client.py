# Written from ../asynchronous by `python -m api.generate`.
"""The whole client: jobs, drafts, and here webhooks, keys and the service itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

from api.client.plumbing import given, matching, parsed, part
from api.client.synchronous.evaluations import Evaluations
from api.schemas import (
    DeliveryPage,
    DeliveryView,
    EndpointList,
    EndpointView,
    EndpointWithSecret,
    Health,
    KeyList,
    KeyView,
    NewKey,
    Readiness,
    RecipeList,
    RecipeView,
    Support,
    UsageView,
)

ENDPOINTS = "/v1/webhook-endpoints"
KEYS = "/v1/api-keys"


class Client(Evaluations):
    """Everything that the API has, as methods; arguments as for `Connection`."""

    # Webhooks

    def webhook_endpoints(self) -> list[EndpointView]:
        """Endpoints, newest first."""
        found = self._get(EndpointList, ENDPOINTS)
        return found.data

    def create_webhook_endpoint(
        self,
        url: str,
        *,
        events: Sequence[str] = (),
        description: str = "",
        all_owners: bool = False,
    ) -> EndpointWithSecret:
        """Have a URL told of jobs and drafts. The secret is in this answer and nowhere else."""
        body = {
            "url": url,
            "events": list(events),
            "description": description,
            "all_owners": all_owners,
        }
        return self._post(EndpointWithSecret, ENDPOINTS, json=body)

    def webhook_endpoint(self, endpoint_id: str) -> EndpointView:
        return self._get(EndpointView, f"{ENDPOINTS}/{part(endpoint_id)}")

    def update_webhook_endpoint(
        self, endpoint_id: str, *, if_match: str | None = None, **changes: Any
    ) -> EndpointView:
        """Change `url`, `events`, `description` or `enabled`."""
        response = self._send(
            "PATCH",
            f"{ENDPOINTS}/{part(endpoint_id)}",
            json=changes,
            headers=matching(if_match),
        )
        return parsed(EndpointView, response)

    def delete_webhook_endpoint(self, endpoint_id: str) -> None:
        """Forget an endpoint and its deliveries."""
        self._send("DELETE", f"{ENDPOINTS}/{part(endpoint_id)}")

    def rotate_webhook_secret(self, endpoint_id: str) -> EndpointWithSecret:
        """Sign with a new secret; for a day, with the former one, too."""
        path = f"{ENDPOINTS}/{part(endpoint_id)}/rotate-secret"
        return self._post(EndpointWithSecret, path)

    def test_webhook_endpoint(self, endpoint_id: str) -> DeliveryView:
        """Send a message of the type `webhook.test`."""
        return self._post(DeliveryView, f"{ENDPOINTS}/{part(endpoint_id)}/test")

    def webhook_deliveries(
        self, endpoint_id: str, *, status: str | None = None, limit: int = 20, after: str = ""
    ) -> DeliveryPage:
        """What was sent, newest first."""
        params = given(status=status, limit=limit, after=after)
        path = f"{ENDPOINTS}/{part(endpoint_id)}/deliveries"
        return self._get(DeliveryPage, path, **params)

    def webhook_delivery(self, endpoint_id: str, delivery_id: str) -> DeliveryView:
        path = f"{ENDPOINTS}/{part(endpoint_id)}/deliveries/{part(delivery_id)}"
        return self._get(DeliveryView, path)

    def redeliver(self, endpoint_id: str, delivery_id: str) -> DeliveryView:
        """Send a message again, with the same id."""
        path = f"{ENDPOINTS}/{part(endpoint_id)}/deliveries/{part(delivery_id)}/redeliver"
        return self._post(DeliveryView, path)

    # Keys and usage

    def keys(self) -> list[KeyView]:
        """All keys, newest first, revoked ones too."""
        found = self._get(KeyList, KEYS)
        return found.data

    def key(self, key_id: str) -> KeyView:
        return self._get(KeyView, f"{KEYS}/{part(key_id)}")

    def create_key(
        self,
        name: str,
        *,
        scopes: Sequence[str] | None = None,
        days: int | None = None,
        idempotency_required: bool = False,
    ) -> NewKey:
        """Make a key. The key itself is in this answer and nowhere else."""
        body = given(name=name, days=days, idempotency_required=idempotency_required)
        body |= {"scopes": list(scopes)} if scopes else {}
        return self._post(NewKey, KEYS, json=body)

    def rotate_key(self, key_id: str, *, overlap_hours: float = 24) -> NewKey:
        """Replace a key by one that sees the same jobs; the former one works a while longer."""
        body = {"overlap_hours": overlap_hours}
        return self._post(NewKey, f"{KEYS}/{part(key_id)}/rotate", json=body)

    def revoke_key(self, key_id: str) -> KeyView:
        """Make a key useless from now on."""
        return parsed(KeyView, self._send("DELETE", f"{KEYS}/{part(key_id)}"))

    def set_hub_token(self, key_id: str, token: str) -> KeyView:
        """Have the models of a key's jobs fetched with this token; no answer ever has it."""
        path = f"{KEYS}/{part(key_id)}/hub-token"
        return parsed(KeyView, self._send("PUT", path, json={"token": token}))

    def remove_hub_token(self, key_id: str) -> KeyView:
        """Forget a key's hub token."""
        return parsed(KeyView, self._send("DELETE", f"{KEYS}/{part(key_id)}/hub-token"))

    def usage(self, *, since: date | None = None) -> UsageView:
        """What this key's jobs have used, and may use."""
        return self._get(UsageView, "/v1/usage", **given(since=since))

    # Catalogue and health

    def recipes(self) -> list[RecipeView]:
        """Recipes by name."""
        found = self._get(RecipeList, "/v1/recipes")
        return found.data

    def supported(self, target: str, *, revision: str | None = None) -> Support:
        """Whether a hub model, `org/name`, can be a target."""
        organisation, _, name = target.partition("/")
        path = f"/v1/targets/{part(organisation)}/{part(name)}:supported"
        return self._get(Support, path, **given(revision=revision))

    def live(self) -> Health:
        return self._get(Health, "/livez")

    def ready(self) -> Readiness:
        """Readiness, also when it is not ready."""
        return parsed(Readiness, self._request("GET", "/readyz"))
