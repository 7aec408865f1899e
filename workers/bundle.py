"""What is kept of a job for good: the draft, its proof, its report and how to serve it."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.files import Check, canonical_json, file_sha256
from jobs.leases import Lease
from jobs.lineage import parent_tag
from jobs.store import ObjectStore
from workers.uploads import MANIFEST

SINGLE_FILES = {
    "target.json": "resolve",
    "benchmark.json": "benchmark",
    "certificate.json": "prove",
    "history.jsonl": "train",
}
"""Files of single stages that go along, and the stage each comes from."""


@dataclass(frozen=True)
class Bundle:
    """A stored bundle: its prefix, its manifest's hash, and the store key of each file."""

    prefix: str
    manifest_sha256: str
    files: dict[str, str]


def collect(run: Path, folder: Path, serving: dict[str, Any]) -> None:
    """Put a bundle's files together in a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(_output(run, "export") / "draft", folder / "draft")
    for name, stage in SINGLE_FILES.items():
        if (source := _output(run, stage) / name).is_file():
            shutil.copyfile(source, folder / name)
    for source in sorted((run / "report").iterdir()):
        if source.is_file():
            shutil.copyfile(source, folder / source.name)
    shutil.copyfile(run / "config.json", folder / "run-config.json")
    (folder / "serving.json").write_bytes(canonical_json(serving))


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
    return Bundle(prefix, digest, keys)


def _output(run: Path, stage: str) -> Path:
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
