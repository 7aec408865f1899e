"""The description of the API: what FastAPI derives, with problem documents as they really are."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from api.schemas import Problem

REF = "#/components/schemas/{model}"

TAGS = [
    {"name": "jobs", "description": "One job makes one draft for one target."},
    {"name": "events", "description": "What happened to a job, numbered without gaps."},
    {"name": "outputs", "description": "Checkpoints, metrics, logs and artifacts of a job."},
    {"name": "drafts", "description": "Registered drafts and their files."},
    {"name": "attachments", "description": "New checkpoints that get their drafts."},
    {"name": "webhooks", "description": "Messages by the Standard Webhooks rules."},
    {"name": "keys", "description": "API keys, and what they have used."},
    {"name": "catalogue", "description": "Recipes, and which targets are supported."},
    {"name": "health", "description": "For probes; no key needed."},
]

DESCRIPTION = """\
Trains an EAGLE-3 draft for a target model, proves it lossless, measures it and registers it.

Errors are RFC 9457 problem documents. Enumerations may grow. Unknown body fields are refused.
"""


def describe(app: FastAPI) -> None:
    """Make `app.openapi()` complete."""
    derive = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = derive()
            models = schema["components"]["schemas"]
            for unused in ("HTTPValidationError", "ValidationError"):
                models.pop(unused, None)
            described = Problem.model_json_schema(ref_template=REF)
            models.update(described.pop("$defs"))
            models["Problem"] = described
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
