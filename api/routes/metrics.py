"""Figures for Prometheus. In full mode a key with the scope `metrics:read` is needed: they are of
all keys together. Embedded mode answers on loopback, like everything else there."""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from api.auth import MetricsRead
from api.state import StateDep
from jobs.figures import Figures

router = APIRouter(include_in_schema=False)  # its form is Prometheus' own


@router.get("/metrics")
def metrics(state: StateDep, _: MetricsRead) -> Response:
    with state.db.read() as session:
        text = Figures(session, state.settings, state.db.now()).text()
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)
