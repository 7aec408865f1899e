"""Objects of the store as answers, and a draft's manifest as a list of files."""

from __future__ import annotations

import hashlib
import json
import mimetypes
from pathlib import PurePosixPath

from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter, ValidationError

from api.schemas import DraftFile, DraftView
from jobs.errors import ChecksumMismatch
from jobs.store import ObjectStore

REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
)
"""A report is data from a worker: it may look as it likes, and do nothing."""

INLINE = frozenset({"text/html", "text/markdown", "application/json", "image/svg+xml", "image/png"})

_FILES = TypeAdapter(list[DraftFile])


def store_response(store: ObjectStore, key: str, name: str) -> Response:
    """An object, streamed; what a browser cannot show safely is offered as a download.

    Raises:
        NotFound: the store lacks the key.
    """
    base = PurePosixPath(name).name
    media = "text/markdown" if base.endswith(".md") else mimetypes.guess_type(base)[0]
    media = media or "application/octet-stream"
    kind = "inline" if media in INLINE else "attachment"
    quoted = base.replace('"', "")
    headers = {
        "content-disposition": f'{kind}; filename="{quoted}"',
        "content-security-policy": REPORT_POLICY,
        "x-content-type-options": "nosniff",
        "cache-control": "private, max-age=3600",
    }
    return StreamingResponse(store.open(key), media_type=media, headers=headers)


def draft_files(store: ObjectStore, draft: DraftView) -> list[DraftFile]:
    """The files that a draft's manifest names.

    Raises:
        ChecksumMismatch: the manifest is not the one that was registered.
    """
    raw = store.get_bytes(f"{bundle_key(store, draft)}/manifest.json")
    if hashlib.sha256(raw).hexdigest() != draft.manifest_sha256:
        raise ChecksumMismatch(f"the manifest of draft {draft.id} is not the one it has recorded")
    try:
        files = json.loads(raw)["files"]
        return _FILES.validate_python(
            [{"path": path, "size": f["bytes"], "sha256": f["sha256"]} for path, f in files.items()]
        )
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise ChecksumMismatch(f"the manifest of draft {draft.id} cannot be read") from error


def bundle_key(store: ObjectStore, draft: DraftView) -> str:
    """Store key of a draft's folder."""
    return draft.uri.removeprefix(store.uri("")).strip("/")
