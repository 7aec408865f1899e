"""Writes `docs/openapi.json` from the routes: `python -m api.generate`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from api.app import create_app
from jobs.settings import Settings

TARGET = Path(__file__).resolve().parent.parent / "docs" / "openapi.json"


def openapi_text() -> str:
    """The description of the API, as committed."""
    with tempfile.TemporaryDirectory() as home:
        schema = create_app(Settings(mode="embedded", home=Path(home))).openapi()
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(openapi_text())
