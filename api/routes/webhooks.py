"""Webhook endpoints, their secrets, and their deliveries."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from api.auth import JobsRead, JobsWrite
from api.conditional import UNCHANGED, IfMatch, IfNoneMatch, check_match, tagged
from api.cursor import After, Cursors, Limit
from api.problems import responses
from api.query import no_others
from api.schemas import (
    DeliveryPage,
    DeliveryView,
    EndpointBody,
    EndpointList,
    EndpointPatch,
    EndpointView,
    EndpointWithSecret,
)
from api.state import State, StateDep
from api.views import delivery_view, endpoint_view
from jobs import webhooks
from jobs.errors import Forbidden
from jobs.webhooks_address import check_url
from jobs.webhooks_signing import shown, signing_secret
from jobs.webhooks_tables import DeliveryStatus, WebhookEndpoint

router = APIRouter(
    prefix="/v1/webhook-endpoints", tags=["webhooks"], dependencies=[Depends(no_others)]
)

EndpointId = Annotated[str, Path(max_length=40, examples=["whe_01kb8m2v9x3tq7c5"])]
DeliveryId = Annotated[str, Path(max_length=40, examples=["msg_01kb8m2v9x3tq7c5"])]


@router.get(
    "",
    operation_id="listWebhookEndpoints",
    summary="Endpoints, newest first",
    responses=responses(),
)
def list_endpoints(state: StateDep, caller: JobsRead) -> EndpointList:
    with state.db.read() as session:
        found = webhooks.list_endpoints(session, caller.sees)
    return EndpointList(data=[endpoint_view(one) for one in found])


@router.post(
    "",
    status_code=201,
    operation_id="createWebhookEndpoint",
    summary="Have a URL told of jobs and drafts",
    description="The signing secret is in this answer and nowhere else.",
    responses=responses(400),
)
def create_endpoint(body: EndpointBody, state: StateDep, caller: JobsWrite) -> EndpointWithSecret:
    check_url(body.url, state.settings.webhook_hosts)
    if body.all_owners and caller.sees is not None:
        raise Forbidden("all_owners is for keys with the scope admin")
    with state.db.write() as session:
        endpoint = webhooks.add_endpoint(
            session,
            caller.owner,
            body.url,
            events=list(body.events),
            description=body.description,
            all_owners=body.all_owners,
            now=state.db.now(),
        )
    return _with_secret(state, endpoint)


@router.get(
    "/{endpoint_id}",
    operation_id="getWebhookEndpoint",
    summary="An endpoint",
    response_model=EndpointView,
    responses={**responses(404), **UNCHANGED},
)
def get_endpoint(
    endpoint_id: EndpointId, state: StateDep, caller: JobsRead, if_none_match: IfNoneMatch = None
) -> Response:
    with state.db.read() as session:
        endpoint = webhooks.get_endpoint(session, endpoint_id, caller.sees)
    return tagged(endpoint_view(endpoint), if_none_match)


@router.patch(
    "/{endpoint_id}",
    operation_id="updateWebhookEndpoint",
    summary="Change an endpoint, switch it off, or on again",
    responses=responses(400, 404, 412),
)
def update_endpoint(
    endpoint_id: EndpointId,
    body: EndpointPatch,
    state: StateDep,
    caller: JobsWrite,
    if_match: IfMatch = None,
) -> EndpointView:
    changes = body.model_dump(exclude_none=True)
    if "url" in changes:
        check_url(changes["url"], state.settings.webhook_hosts)
    with state.db.write() as session:
        endpoint = webhooks.get_endpoint(session, endpoint_id, caller.sees)
        check_match(if_match, endpoint_view(endpoint))
        webhooks.change_endpoint(endpoint, state.db.now(), changes)
        return endpoint_view(endpoint)


@router.delete(
    "/{endpoint_id}",
    status_code=204,
    operation_id="deleteWebhookEndpoint",
    summary="Forget an endpoint and its deliveries",
    responses=responses(404),
)
def delete_endpoint(endpoint_id: EndpointId, state: StateDep, caller: JobsWrite) -> None:
    with state.db.write() as session:
        session.delete(webhooks.get_endpoint(session, endpoint_id, caller.sees))


@router.post(
    "/{endpoint_id}/rotate-secret",
    operation_id="rotateWebhookSecret",
    summary="Sign with a new secret",
    description="For a day, deliveries carry a signature of the former one, too.",
    responses=responses(404),
)
def rotate_secret(
    endpoint_id: EndpointId, state: StateDep, caller: JobsWrite
) -> EndpointWithSecret:
    with state.db.write() as session:
        endpoint = webhooks.get_endpoint(session, endpoint_id, caller.sees)
        webhooks.rotate_secret(endpoint, state.db.now())
    return _with_secret(state, endpoint)


@router.post(
    "/{endpoint_id}/test",
    status_code=202,
    operation_id="testWebhookEndpoint",
    summary="Send a message of the type `webhook.test`",
    responses=responses(404, 409),
)
def send_test(endpoint_id: EndpointId, state: StateDep, caller: JobsWrite) -> DeliveryView:
    with state.db.write() as session:
        endpoint = webhooks.get_endpoint(session, endpoint_id, caller.sees)
        return delivery_view(webhooks.test_endpoint(session, endpoint, state.db.now()))


@router.get(
    "/{endpoint_id}/deliveries",
    operation_id="listWebhookDeliveries",
    summary="What was sent, newest first",
    description="Kept for 30 days.",
    responses=responses(404),
)
def list_deliveries(
    endpoint_id: EndpointId,
    state: StateDep,
    caller: JobsRead,
    status: Annotated[
        DeliveryStatus | None, Query(description="Only deliveries with this status.")
    ] = None,
    after: After = None,
    limit: Limit = 20,
) -> DeliveryPage:
    cursors = Cursors(state.secret, "deliveries", endpoint_id, status)
    with state.db.read() as session:
        webhooks.get_endpoint(session, endpoint_id, caller.sees)
        page = webhooks.list_deliveries(
            session, endpoint_id, status=status, after=cursors.read(after), limit=limit
        )
        data = [delivery_view(one) for one in page.items]
    following = cursors.make(page.next_after)
    return DeliveryPage(data=data, has_more=following is not None, next=following)


@router.get(
    "/{endpoint_id}/deliveries/{delivery_id}",
    operation_id="getWebhookDelivery",
    summary="One message and how its last attempt went",
    responses=responses(404),
)
def get_delivery(
    endpoint_id: EndpointId, delivery_id: DeliveryId, state: StateDep, caller: JobsRead
) -> DeliveryView:
    with state.db.read() as session:
        webhooks.get_endpoint(session, endpoint_id, caller.sees)
        return delivery_view(webhooks.get_delivery(session, endpoint_id, delivery_id))


@router.post(
    "/{endpoint_id}/deliveries/{delivery_id}/redeliver",
    status_code=202,
    operation_id="redeliverWebhook",
    summary="Send a message again, with the same id",
    responses=responses(404, 409),
)
def redeliver(
    endpoint_id: EndpointId, delivery_id: DeliveryId, state: StateDep, caller: JobsWrite
) -> DeliveryView:
    with state.db.write() as session:
        webhooks.get_endpoint(session, endpoint_id, caller.sees)
        found = webhooks.get_delivery(session, endpoint_id, delivery_id)
        webhooks.redeliver(session, found, state.db.now())
        return delivery_view(found)


def _with_secret(state: State, endpoint: WebhookEndpoint) -> EndpointWithSecret:
    secret = signing_secret(state.settings, endpoint.id, endpoint.secret_generation)
    return EndpointWithSecret(**endpoint_view(endpoint).model_dump(), secret=shown(secret))
