"""The web page at `/`: jobs and drafts as they are, from the same API that everybody uses."""

from __future__ import annotations

import base64
import hashlib
from importlib import resources

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

HTML = resources.files("api").joinpath("page.html").read_text()


def _source(tag: str) -> str:
    """The CSP source that allows the page's own inline element and no other."""
    inner = HTML.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
    return f"'sha256-{digest}'"


HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; connect-src 'self'; script-src {_source('script')}; "
        f"style-src {_source('style')}; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@router.get("/")
def page() -> HTMLResponse:
    return HTMLResponse(HTML, headers=HEADERS)
