"""Objects of the store as answers, and a draft's manifest as a list of files."""

from __future__ import annotations

import hashlib
import json
import mimetypes
from datetime import timedelta
from pathlib import PurePosixPath

from fastapi import Response
from fastapi.responses import StreamingResponse
from pydantic import TypeAdapter, ValidationError

from api.schemas import DownloadUrl, DraftFile, DraftView
from jobs.errors import ChecksumMismatch
from jobs.ids import utcnow
from jobs.store import ObjectStore

REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
)
"""A report is data from a worker: it may look as it likes, and do nothing."""

LINK_S = 900
"""How long a link of the store works: anybody who has it may use it."""

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


def download_url(store: ObjectStore, key: str, path: str) -> DownloadUrl:
    """A link of the store to an object, or else the path of this API that serves it."""
    now = utcnow()  # before it is signed: the link lives at least until what is said
    url = store.presign(key, LINK_S)
    if url is None:
        return DownloadUrl(url=path)
    return DownloadUrl(url=url, expires_at=now + timedelta(seconds=LINK_S))


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
