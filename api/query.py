"""Query strings that FastAPI does not describe: `label.NAME=value`, and refusal of unknown names.

A misspelt filter that were ignored would answer with everything, which reads like a match. Both are
coroutines, since FastAPI runs anything else in a thread, which costs more than they do.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from eagle3.plan import device_names
from jobs.spec import LABEL_NAME_PATTERN

LABEL = "label."
LABEL_NAME = re.compile(LABEL_NAME_PATTERN)
JOB_FILTERS = frozenset({"status", "base_model", "after", "limit"})


async def labels(request: Request) -> dict[str, str]:
    """The label filters of `GET /v1/jobs`."""
    found = {
        name.removeprefix(LABEL): value
        for name, value in request.query_params.items()
        if name.startswith(LABEL)
    }
    unknown = [n for n in request.query_params if n not in JOB_FILTERS and not _is_label(n)]
    _refuse(request, unknown, [*sorted(JOB_FILTERS), "label.NAME"])
    return found


async def no_others(request: Request) -> None:
    """Refuse parameters that the route does not describe."""
    route: APIRoute = request.scope["route"]
    names = sorted(_described(route.dependant))
    _refuse(request, [n for n in request.query_params if n not in names], names)


def _described(dependant: Dependant) -> set[str]:
    """Names of the query parameters of a route and of all that it depends on."""
    names = {field.alias for field in dependant.query_params}
    return names.union(*(_described(inner) for inner in dependant.dependencies))


def _refuse(request: Request, unknown: list[str], expected: list[str]) -> None:
    if unknown:
        names = ", ".join(expected) or "none"
        raise RequestValidationError(
            [
                {
                    "type": "extra_forbidden",
                    "loc": ("query", name),
                    "msg": f"unknown parameter; expected {names}",
                    "input": request.query_params[name],
                }
                for name in unknown
            ]
        )


def _is_label(name: str) -> bool:
    return name.startswith(LABEL) and LABEL_NAME.fullmatch(name.removeprefix(LABEL)) is not None


LabelsDep = Annotated[dict[str, str], Depends(labels)]


def _device(name: str) -> str:
    if name not in device_names():
        raise ValueError(f"no device {name!r}; expected one of {', '.join(device_names())}")
    return name


class PlanFor(BaseModel):
    """What `POST /v1/jobs:validate` plans for."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    gpu: (
        Annotated[
            str, AfterValidator(_device), Field(json_schema_extra={"enum": list(device_names())})
        ]
        | None
    ) = None
    """Device; the cores of the API's own machine when empty."""
    gpus: Annotated[int, Field(ge=1, le=65536)] | None = None
    """How many devices; of `cpu`, cores."""
    price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """What an hour of all of them costs; `UPDRAFT_PRICE_PER_HOUR` when empty."""
