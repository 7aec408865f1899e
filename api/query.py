"""Query strings that FastAPI does not describe: `label.NAME=value`, and refusal of unknown names.

A misspelt filter that were ignored would answer with everything, which reads like a match.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError

from jobs.spec import LABEL_NAME_PATTERN

LABEL = "label."
LABEL_NAME = re.compile(LABEL_NAME_PATTERN)
JOB_FILTERS = frozenset({"status", "base_model", "after", "limit"})


def labels(request: Request) -> dict[str, str]:
    """The label filters of `GET /v1/jobs`."""
    found = {
        name.removeprefix(LABEL): value
        for name, value in request.query_params.items()
        if name.startswith(LABEL)
    }
    unknown = [n for n in request.query_params if n not in JOB_FILTERS and not _is_label(n)]
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


def _is_label(name: str) -> bool:
    return name.startswith(LABEL) and LABEL_NAME.fullmatch(name.removeprefix(LABEL)) is not None


LabelsDep = Annotated[dict[str, str], Depends(labels)]
