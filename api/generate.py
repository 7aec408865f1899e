"""Writes what follows from other code: `python -m api.generate`.

`docs/openapi.json` from the routes, and the client's `synchronous/` from its `asynchronous/`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from api.app import create_app
from jobs.settings import Settings

ROOT = Path(__file__).resolve().parent
OPENAPI = ROOT.parent / "docs" / "openapi.json"
ASYNCHRONOUS = ROOT / "client" / "asynchronous"
SYNCHRONOUS = ROOT / "client" / "synchronous"

NOTE = "# Written from ../asynchronous by `python -m api.generate`.\n"
WORDS = {
    "asynccontextmanager": "contextmanager",
    "asynchronous": "synchronous",
    "async ": "",
    "await ": "",
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "aclose": "close",
    "aiter_": "iter_",
    "aread": "read",
    " to await": "",
}


def openapi_text() -> str:
    """The description of the API, as committed."""
    with tempfile.TemporaryDirectory() as home:
        schema = create_app(Settings(mode="embedded", home=Path(home))).openapi()
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def synchronous_text(source: Path) -> str:
    """A module of the asynchronous client, for who waits."""
    words = re.compile("|".join(re.escape(word) for word in WORDS))
    text = NOTE + words.sub(lambda found: WORDS[found[0]], source.read_text())
    for how in (("check", "--fix", "--quiet", "--select", "I"), ("format",)):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *how, "--stdin-filename", source.name, "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT.parent,
        )
        text = done.stdout
    return text


if __name__ == "__main__":
    OPENAPI.write_text(openapi_text())
    for module in sorted(ASYNCHRONOUS.glob("*.py")):
        (SYNCHRONOUS / module.name).write_text(synchronous_text(module))
