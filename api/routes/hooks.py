"""What other services tell this one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request, Security
from fastapi.security import APIKeyHeader

from api.problems import responses
from api.query import no_others
from api.schemas import HookView
from api.state import StateDep
from jobs import mlflow_hooks
from jobs.errors import NotFound

router = APIRouter(prefix="/v1/hooks", tags=["attachments"], dependencies=[Depends(no_others)])

BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "object"},
            "examples": {
                "created": {
                    "summary": "A new version",
                    "value": {
                        "entity": "model_version",
                        "action": "created",
                        "timestamp": "2026-03-01T12:00:00+00:00",
                        "data": {"name": "acme-chat", "version": "7", "source": "s3://models/7"},
                    },
                }
            },
        }
    },
}
signature = APIKeyHeader(
    name="X-MLflow-Signature",
    auto_error=False,
    scheme_name="MlflowSignature",
    description="What MLflow signs its webhooks with, in place of an API key.",
)
Sent = Annotated[str | None, Header(max_length=256)]


async def _body(request: Request) -> bytes:
    """As it was signed."""
    return await request.body()


@router.post(
    "/mlflow",
    status_code=202,
    operation_id="takeMlflowEvent",
    summary="A webhook of MLflow: a new model version gets its draft",
    description="For MLflow's event `model_version.created`. The signature takes the place of a "
    "key. A version is attached once, however often it is told; 404 unless it is configured.",
    responses=responses(404),
    openapi_extra={"requestBody": BODY},
)
def take_mlflow_event(
    state: StateDep,
    body: Annotated[bytes, Depends(_body)],
    signed: Annotated[str | None, Security(signature)],
    x_mlflow_timestamp: Sent = None,
    x_mlflow_delivery_id: Sent = None,
) -> HookView:
    secret, now = state.settings.mlflow_hook_secret, state.db.now()
    if secret is None:
        raise NotFound("webhooks of MLflow are not taken here; set UPDRAFT_MLFLOW_HOOK_SECRET")
    mlflow_hooks.verify(
        secret,
        signature=signed,
        timestamp=x_mlflow_timestamp,
        delivery_id=x_mlflow_delivery_id,
        body=body,
        now=now,
    )
    with state.db.write() as session:
        taken = mlflow_hooks.take(session, body, settings=state.settings, now=now)
    return HookView(
        attachment_id=taken.attachment_id, why=taken.why or None, replayed=taken.replayed
    )
