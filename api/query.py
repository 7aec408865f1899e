"""Query strings that FastAPI does not describe: `label.NAME=value`, and refusal of unknown names.

A misspelt filter that were ignored would answer with everything, which reads like a match.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError

LABEL = "label."
JOB_FILTERS = frozenset({"status", "base_model", "after", "limit"})


def labels(request: Request) -> dict[str, str]:
    """The label filters of `GET /v1/jobs`."""
    found = {
        name.removeprefix(LABEL): value
        for name, value in request.query_params.items()
        if name.startswith(LABEL)
    }
    unknown = [n for n in request.query_params if n not in JOB_FILTERS and not n.startswith(LABEL)]
    if unknown:
        expected = ", ".join([*sorted(JOB_FILTERS), "label.NAME"])
        raise RequestValidationError(
            [
                {
                    "type": "extra_forbidden",
                    "loc": ("query", name),
                    "msg": f"unknown filter; expected {expected}",
                    "input": request.query_params[name],
                }
                for name in unknown
            ]
        )
    return found


LabelsDep = Annotated[dict[str, str], Depends(labels)]
