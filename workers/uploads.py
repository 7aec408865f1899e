"""Stage outputs and checkpoints between the run directory and the object store.

    stages/<stage>/<digest>/<outputs digest>/…    files first, manifest.json last and only once
    jobs/<job>/checkpoints/<stage>/<lease>/<step>/…

The outputs' own digest is part of the prefix: whoever writes there writes the same bytes, so a
runaway child can spoil nothing. Which prefix counts is what the database says.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs import outputs
from jobs.errors import ChecksumMismatch, Invalid, NotFound, Unavailable, UpdraftError
from jobs.files import Check, arriving, arriving_folder, canonical_json
from jobs.leases import Lease
from jobs.logs import redact_file
from jobs.outputs import Found
from jobs.store import ObjectStore
from workers.runtime import Runtime

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"


def upload_outputs(rt: Runtime, lease: Lease, run: Path, digest: str, check: Check) -> str:
    """Store a stage's outputs. Returns their prefix, which may have been filled before.

    Args:
        check: asked all the while; raises when they are not wanted any more.

    Raises:
        ChecksumMismatch: a file is not what the manifest says.
        Unavailable: an earlier copy is being removed just now.
    """
    store, stage = rt.store, lease.stage
    folder = run / "stages" / stage / digest
    manifest = json.loads((folder / MANIFEST).read_text())
    prefix = f"stages/{stage}/{digest}/{manifest['outputs_digest'][:16]}"
    if not _held(rt, lease, prefix, digest, manifest):
        raise Unavailable(f"an unused copy of {prefix} is being removed")
    if not store.exists(f"{prefix}/{MANIFEST}"):
        for name, entry in manifest["outputs"].items():
            check()
            stored = store.put_file(f"{prefix}/{name}", folder / name, check)
            if stored != entry["sha256"]:
                raise ChecksumMismatch(f"{folder / name} changed after {stage} wrote its manifest")
        check()
        store.put_bytes(f"{prefix}/{MANIFEST}", canonical_json(manifest), if_none_match=True)
    with rt.db.write() as session:
        outputs.completed(session, prefix, rt.clock())
    return prefix


def reuse_outputs(rt: Runtime, lease: Lease, run: Path, digest: str, check: Check) -> Found | None:
    """Bring the outputs that another job has stored for a digest onto the run. None when there are
    none, or when they are not as they were stored: the stage is then done again."""
    with rt.db.write() as session:
        found = outputs.find(session, lease.stage, digest, owner=lease.account, now=rt.clock())
    if found is None:
        return None
    try:
        download_outputs(rt.store, run, lease.stage, found.prefix, check, files=True)
    except (NotFound, ChecksumMismatch) as e:
        log.warning("outputs of another job are of no use: %s", e)
        rt.store.delete(f"{found.prefix}/{MANIFEST}")  # so that they are stored anew
        with rt.db.write() as session:
            outputs.broken(session, found.prefix)
        return None
    return found


def _held(rt: Runtime, lease: Lease, prefix: str, digest: str, manifest: dict[str, Any]) -> bool:
    size = sum(entry["bytes"] for entry in manifest["outputs"].values())
    with rt.db.write() as session:
        return outputs.hold(
            session,
            prefix,
            stage=lease.stage,
            digest=digest,
            owner=lease.account,
            size=size,
            now=rt.clock(),
        )


def download_outputs(
    store: ObjectStore, run: Path, stage: str, prefix: str, check: Check, *, files: bool
) -> None:
    """Bring a stage's manifest, and its files when asked, onto the run; make it current.

    What is there already, with the recorded sizes, is left alone.
    """
    digest = prefix.split("/")[2]
    folder = run / "stages" / stage / digest
    manifest = json.loads(store.get_bytes(f"{prefix}/{MANIFEST}"))
    if not _same(folder / MANIFEST, manifest["outputs_digest"]):
        shutil.rmtree(folder, ignore_errors=True)
    for name, entry in manifest["outputs"].items() if files else ():
        path = folder / inside(name)
        if not path.is_file() or path.stat().st_size != entry["bytes"]:
            store.get_file(f"{prefix}/{name}", path, entry["sha256"], check)
    folder.mkdir(parents=True, exist_ok=True)
    if not _same(folder / MANIFEST, manifest["outputs_digest"]):
        with arriving(folder / MANIFEST) as tmp:
            tmp.write_bytes(canonical_json(manifest))
    (folder.parent / "current").write_text(digest)


def download_checkpoint(
    store: ObjectStore, run: Path, checkpoint: dict[str, Any], check: Check
) -> bool:
    """Bring a stored checkpoint back, unless the run directory has it. Returns whether it did; one
    that the store has lost costs its steps, not the job."""
    folder = run / inside(checkpoint["path"])
    uri = checkpoint.get("uri")
    if uri is None or folder.is_dir():
        return False
    try:
        listing = json.loads(store.get_bytes(f"{uri}/{MANIFEST}"))
    except NotFound as e:
        log.warning("a checkpoint is lost: %s", e)
        return False
    with arriving_folder(folder) as coming:
        for name, sha256 in listing["files"].items():
            store.get_file(f"{uri}/{name}", coming / inside(name), sha256, check)
        for name, sha256 in listing["best"].items():
            best = folder.parent / "best" / inside(name)
            store.get_file(f"{uri}/best/{name}", best, sha256, check)
    return True


class CheckpointUploader:
    """Uploads announced checkpoints from its own thread; a newer one replaces one that waits."""

    def __init__(
        self,
        store: ObjectStore,
        run: Path,
        lease: Lease,
        ready: Callable[[dict[str, Any]], None],
        failed: Callable[[str], None],
    ) -> None:
        self._store, self._run, self._lease = store, run, lease
        self._ready, self._failed = ready, failed
        self._waiting: dict[str, Any] | None = None
        former = (lease.checkpoint or {}).get("uri")
        self._stored: list[str] = [former] if former else []
        """Prefixes of checkpoints in the store, oldest first."""
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._loop, name="checkpoints", daemon=True)
        self._thread.start()

    def announce(self, checkpoint: dict[str, Any]) -> None:
        """Take in what the child has said of one: `{step, path, bytes}`."""
        with self._changed:
            self._waiting = checkpoint
            self._changed.notify()

    def recorded(self, checkpoint: dict[str, Any]) -> None:
        """Drop the checkpoints before this one, now that the database names it and not them."""
        older = self._stored[: self._stored.index(checkpoint["uri"])]
        del self._stored[: len(older)]
        try:
            for key in [key for prefix in older for key in self._store.list(f"{prefix}/")]:
                self._store.delete(key)
        except UpdraftError as e:
            log.warning("an old checkpoint stays in the store: %s", e)

    def close(self) -> None:
        """Upload what still waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._changed:
                while self._waiting is None and not self._closed:
                    self._changed.wait()
                checkpoint, self._waiting = self._waiting, None
            if checkpoint is None:
                return
            try:
                self._upload(checkpoint)
            except FileNotFoundError:
                continue  # the child has written a newer one and dropped this
            except (UpdraftError, OSError) as e:
                self._failed(f"checkpoint {checkpoint['step']} is kept on this machine only: {e}")

    def _upload(self, checkpoint: dict[str, Any]) -> None:
        lease = self._lease
        folder = self._run / checkpoint["path"]
        prefix = f"jobs/{lease.job_id}/checkpoints/{lease.stage}/{lease.token}/{checkpoint['step']}"
        listing = {
            "files": self._put(folder, prefix),
            # the best weights so far lie beside a checkpoint, and its state refers to them
            "best": self._put(folder.parent / "best", f"{prefix}/best"),
        }
        self._store.put_bytes(f"{prefix}/{MANIFEST}", canonical_json(listing))
        self._stored.append(prefix)
        self._ready({**checkpoint, "uri": prefix})

    def _put(self, folder: Path, prefix: str) -> dict[str, str]:
        names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
        return {name: self._store.put_file(f"{prefix}/{name}", folder / name) for name in names}


def upload_logs(store: ObjectStore, run: Path, job_id: str, stage: str) -> None:
    """Store what a stage printed, tracebacks too, without secrets, under `jobs/<job>/logs/`."""
    for name in (f"{stage}.jsonl", f"{stage}.stderr.log"):
        path = run / "logs" / name
        if path.is_file() and path.stat().st_size:
            with tempfile.TemporaryDirectory(dir=run) as folder:
                clean = Path(folder) / name
                redact_file(path, clean)
                store.put_file(f"jobs/{job_id}/logs/{name}", clean)


def download_logs(store: ObjectStore, run: Path, job_id: str, stage: str) -> None:
    """Bring an earlier stage's lines onto a run that lacks them; the report reads them."""
    path = run / "logs" / f"{stage}.jsonl"
    if not path.is_file():
        try:
            store.get_file(f"jobs/{job_id}/logs/{stage}.jsonl", path)
        except NotFound:
            return


def _same(manifest: Path, outputs_digest: str) -> bool:
    return manifest.is_file() and (
        json.loads(manifest.read_text()).get("outputs_digest") == outputs_digest
    )


def inside(name: str) -> str:
    """A file's name in a folder; raises `Invalid` when it leads out of it."""
    if name.startswith("/") or ".." in name.split("/"):
        raise Invalid(f"{name!r} leaves the run directory")
    return name
