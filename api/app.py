"""The API: `uvicorn --factory api.app:serve`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from api import openapi, problems
from api.middleware import Gatekeeper
from api.routes import drafts, events, health, jobs, page
from api.state import State
from jobs import logs
from jobs.db import Database
from jobs.settings import Settings
from jobs.store import open_store


def serve() -> FastAPI:
    """The application as a process runs it, with its log as JSON lines."""
    logs.configure()
    return create_app()


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application. Settings come from the environment unless given.

    Raises:
        ValidationError: settings that are wrong or unsafe; nothing is served then.
    """
    settings = settings or Settings()
    state = State(settings, Database(settings.database_url), open_store(settings))

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
        lifespan=lifespan,
    )
    app.state.updraft = state
    app.add_middleware(Gatekeeper, local_only=settings.mode == "embedded")
    problems.install(app)
    openapi.describe(app)
    for router in (jobs.router, events.router, drafts.router, health.router, page.router):
        app.include_router(router)
    return app
