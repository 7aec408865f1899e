"""The API: `uvicorn --factory api.app:serve`."""

from __future__ import annotations

import gc
import importlib.metadata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api import openapi, problems
from api.access import Access
from api.limits import Limiter
from api.middleware import Gatekeeper
from api.routes import (
    attachments,
    catalogue,
    draft_files,
    drafts,
    evaluations,
    events,
    health,
    hooks,
    jobs,
    keys,
    metrics,
    outputs,
    page,
    webhooks,
)
from api.state import State
from jobs import logs, tracing
from jobs.db import Database
from jobs.keys_derived import derived
from jobs.mlflow_hooks import hook_spec
from jobs.settings import Settings
from jobs.store import open_store


def serve() -> FastAPI:
    """The application as a process runs it, with its log as JSON lines."""
    settings = Settings()
    logs.configure(settings)
    tracing.configure("updraft-api")
    app = create_app(settings)
    gc.collect()
    gc.freeze()  # what is loaded stays; looking through it again and again stops all requests
    return app


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application. Settings come from the environment unless given.

    Raises:
        ValidationError: settings that are wrong or unsafe; nothing is served then.
        Invalid: the policy of MLflow's webhooks is none.
    """
    settings = settings or Settings()
    if settings.mlflow_hook_secret is not None:
        hook_spec(settings, "demo")  # a wrong policy is found now, and not by the first version
    state = State(
        settings,
        Database(settings.database_url),
        open_store(settings),
        Limiter(settings.requests_per_second),
        derived(settings, "cursors"),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        state.db.close()

    app = FastAPI(
        title="Updraft",
        version=importlib.metadata.version("updraft"),
        summary="A target model in, a proven and registered draft out.",
        description=openapi.DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        openapi_tags=openapi.TAGS,
        docs_url=None,  # both pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # behind a proxy a redirect names the wrong scheme or host
        lifespan=lifespan,
    )
    app.state.updraft = state
    app.add_middleware(Access, lines=settings.mode == "full")
    app.add_middleware(Gatekeeper, local_only=settings.mode == "embedded")
    problems.install(app)
    openapi.describe(app)
    for routes in (
        jobs,
        events,
        outputs,
        drafts,
        draft_files,
        attachments,
        evaluations,
        hooks,
        webhooks,
        keys,
        catalogue,
        health,
        metrics,
        page,
    ):
        app.include_router(routes.router)
    return app
