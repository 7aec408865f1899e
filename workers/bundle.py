"""What is kept of a job for good: the draft, its proof, its report and how to serve it."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.drafts import get_draft
from jobs.errors import ChecksumMismatch, NotFound
from jobs.files import Check, arriving_folder, canonical_json, file_sha256
from jobs.leases import Lease
from jobs.lineage import parent_tag
from jobs.store import ObjectStore
from workers.runtime import Runtime
from workers.uploads import MANIFEST, inside

SINGLE_FILES = {
    "target.json": "resolve",
    "fingerprint.json": "export",
    "parity.json": "parity",
    "benchmark.json": "benchmark",
    "certificate.json": "prove",
    "certificate.md": "prove",
    "history.jsonl": "train",
}
"""Files of single stages that go along, and the stage each comes from."""


@dataclass(frozen=True)
class Bundle:
    """A stored bundle: its prefix, what its manifest says and that one's hash, and the store key of
    each file."""

    prefix: str
    facts: dict[str, Any]
    manifest_sha256: str
    files: dict[str, str]


def collect(run: Path, folder: Path, serving: dict[str, Any], readme: str) -> None:
    """Put a bundle's files together in a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(output_of(run, "export") / "draft", folder / "draft")
    for name, stage in SINGLE_FILES.items():
        if (source := output_of(run, stage) / name).is_file():
            shutil.copyfile(source, folder / name)
    for source in sorted((run / "report").iterdir()):
        if source.is_file():
            shutil.copyfile(source, folder / source.name)
    shutil.copyfile(run / "config.json", folder / "run-config.json")
    (folder / "serving.json").write_bytes(canonical_json(serving))
    (folder / "README.md").write_text(readme)


def store_bundle(store: ObjectStore, folder: Path, facts: dict[str, Any], check: Check) -> Bundle:
    """Store a folder under the hash of its manifest: files first, the manifest last and once."""
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    files = {
        name: {"sha256": file_sha256(folder / name), "bytes": (folder / name).stat().st_size}
        for name in names
    }
    manifest = canonical_json({**facts, "files": files})
    digest = hashlib.sha256(manifest).hexdigest()
    prefix = f"drafts/{digest[:32]}"
    for name in names:
        check()
        store.put_file(f"{prefix}/{name}", folder / name)
    check()
    store.put_bytes(f"{prefix}/{MANIFEST}", manifest, if_none_match=True)
    keys = {name: f"{prefix}/{name}" for name in (*names, MANIFEST)}
    return Bundle(prefix, facts, digest, keys)


def bring_draft(rt: Runtime, draft_id: str, folder: Path, check: Check) -> Path:
    """A registered draft's files, each as its bundle's manifest says, and that as registered.

    Raises:
        NotFound: they are not in the store any more.
        ChecksumMismatch: they are not what was registered.
    """
    if folder.is_dir():
        return folder
    with rt.db.read() as session:
        draft = get_draft(session, draft_id)
    try:
        manifest = rt.store.get_bytes(f"{draft.uri}/{MANIFEST}")
        if hashlib.sha256(manifest).hexdigest() != draft.manifest_sha256:
            raise ChecksumMismatch(f"the manifest of draft {draft.id} is not the registered one")
        with arriving_folder(folder) as arriving:
            for name, entry in json.loads(manifest)["files"].items():
                if name.startswith("draft/"):
                    path = arriving / inside(name.removeprefix("draft/"))
                    rt.store.get_file(f"{draft.uri}/{name}", path, entry["sha256"], check)
    except NotFound as e:
        raise NotFound(f"the files of draft {draft.id} are gone: {e}; name another one") from e
    return folder


def output_of(run: Path, stage: str) -> Path:
    """Where a stage's outputs lie in a run directory."""
    folder = run / "stages" / stage
    return folder / (folder / "current").read_text().strip()


def job_facts(lease: Lease, summaries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What a bundle's manifest says beside its files: which target the draft belongs to."""
    resolve, export = summaries["resolve"], summaries["export"]
    return {
        "format": 1,
        "target": lease.spec.target,
        "target_resolved": resolve["resolved"],
        "weights_sha256": resolve["weights_sha256"],
        "tokenizer_sha256": resolve["tokenizer_sha256"],
        "template_sha256": resolve["template_sha256"],
        "capture_layers": export["capture_layers"],
        "convention": export.get("convention"),
        "draft_vocab_sha256": export.get("draft_vocab_sha256"),
        **parent_tag(lease.spec),
    }
