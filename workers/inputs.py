"""Makes a run directory ready for a stage: its config, what only the service can fetch, and the
outputs of earlier stages that another machine has made."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from pathlib import Path

from eagle3.config import RunConfig, TargetRef
from jobs.errors import Invalid, InvalidSpec, NotFound, StoreRefused
from jobs.files import Check, arriving_folder
from jobs.leases import Lease
from jobs.lineage import parent_of
from jobs.models import Stage
from jobs.registry import Registry
from jobs.settings import Settings
from jobs.spec import JobSpec, check_allowed, prompt_sources, s3_allowed
from jobs.store_s3 import S3Store, s3_client
from workers.bundle import bring_draft
from workers.candidates import with_candidates
from workers.runtime import Runtime
from workers.uploads import download_checkpoint, download_logs, download_outputs

MODEL_FILES = (".safetensors", ".json", ".model", ".txt", ".jinja")
"""What is fetched of a target: weights without pickles, configs, tokenizer and template."""


def prepare_run(rt: Runtime, lease: Lease, earlier: list[Stage], check: Check) -> Path:
    """Fill the run directory of a lease's job. Returns it.

    Args:
        check: asked while files come from S3; raises when they are not wanted any more.

    Raises:
        InvalidSpec: a place that may not be read from.
        NotFound: an S3 or MLflow input that does not exist.
        Invalid: one that the bucket refuses to these keys.
        StoreRefused: the service's own store does that.
        Unavailable: a server that does not answer.
    """
    run = rt.settings.runs_dir / lease.job_id
    run.mkdir(parents=True, exist_ok=True)
    check_allowed(lease.spec, rt.settings)
    try:
        brought = _bring(lease.spec, run / "inputs", rt.settings, check)
    except StoreRefused as e:  # of a bucket that the job names, not of the service's own
        raise Invalid(str(e)) from e
    config = lease.spec.run_config(rt.settings).model_copy(update={"brought": brought})
    if parent := parent_of(lease.spec):
        config = _going_on_from(bring_draft(rt, parent, run / "inputs" / parent, check), config)
    if lease.stage == "probe":
        config = with_candidates(rt, lease, earlier, config, run / "inputs", check)
    _write_config(run, config)
    for stage in earlier:
        if stage.uri is not None:
            whole = (
                stage.name != "extract" or lease.stage == "train"
            )  # features serve training alone
            download_outputs(rt.store, run, stage.name, stage.uri, check, files=whole)
            download_logs(rt.store, run, lease.job_id, stage.name)
    if lease.checkpoint is not None:
        download_checkpoint(rt.store, run, lease.checkpoint, check)
    return run


def needs_resolve(run: Path, stage: str) -> bool:
    """Whether this machine has not yet fetched the target that a later stage wants to load."""
    if stage in ("resolve", "register"):
        return False
    pointer = run / "stages" / "resolve" / "current"
    if not pointer.is_file():
        return True
    local = pointer.parent / pointer.read_text().strip() / "local.json"
    return not local.is_file() or not Path(json.loads(local.read_text())["path"]).exists()


def _bring(spec: JobSpec, folder: Path, settings: Settings, check: Check) -> dict[str, str]:
    """Fetch what only the service can, unless it is here. Returns where each thing lies."""
    ref, brought = spec.target_ref, {}
    if ref.kind in ("s3", "mlflow"):
        brought[spec.target] = str(_target(ref, folder / "target", settings, check))
    for pointer, source in prompt_sources(spec.prompts):
        if source.startswith("s3://"):
            brought[source] = str(_prompts(source, pointer, folder / "prompts", settings, check))
    return brought


def _target(ref: TargetRef, folder: Path, settings: Settings, check: Check) -> Path:
    if not folder.is_dir():
        with arriving_folder(folder) as arriving:
            if ref.kind == "s3":
                _fetch_prefix(ref.location, arriving, settings, check)
            else:
                _fetch_registered(ref, arriving, settings, check)
    return folder


def _going_on_from(draft: Path, config: RunConfig) -> RunConfig:
    train = config.recipe.train.model_copy(update={"start_from": str(draft)})
    recipe = config.recipe.model_copy(update={"train": train})
    return config.model_copy(update={"recipe": recipe})


def _fetch_registered(ref: TargetRef, folder: Path, settings: Settings, check: Check) -> None:
    registry = Registry(settings)
    uri = registry.model_uri(ref)
    if not uri.startswith("s3://"):
        _download_registered(registry, uri, ref, folder)
        check()
    elif s3_allowed(uri, settings):
        _fetch_prefix(uri, folder, settings, check)
    else:
        detail = f"{ref} lies at {uri}, which is not inside UPDRAFT_S3_ALLOWED"
        raise InvalidSpec([{"pointer": "target", "detail": detail}])


def _download_registered(registry: Registry, uri: str, ref: TargetRef, folder: Path) -> None:
    """What MLflow keeps, wherever in it the model's files lie."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as everything:
        registry.download(uri, Path(everything))
        found = sorted(Path(everything).rglob("config.json"), key=lambda p: len(p.parts))
        if not found:
            raise NotFound(f"target {ref}: no config.json in it; expected the files of a model")
        for path in found[0].parent.iterdir():
            if path.name.endswith(MODEL_FILES) and path.is_file():
                path.rename(folder / path.name)


def _fetch_prefix(uri: str, folder: Path, settings: Settings, check: Check) -> None:
    source, prefix = _bucket(uri.rstrip("/"), settings)
    keys = source.list(f"{prefix}/")
    if not keys:
        raise NotFound(f"target {uri}: nothing there; expected the files of a model under it")
    for key in keys:
        name = key.removeprefix(f"{prefix}/")
        if name.endswith(MODEL_FILES) and "/" not in name:
            source.get_file(key, folder / name, check=check)


def _prompts(uri: str, pointer: str, folder: Path, settings: Settings, check: Check) -> Path:
    source, key = _bucket(uri, settings)
    name = re.sub(r"[^\w.-]", "_", key.rpartition("/")[2])[-80:]
    path = folder / f"{hashlib.sha256(uri.encode()).hexdigest()[:12]}-{name}"
    if not path.is_file():
        try:
            source.get_file(key, path, check=check)
        except NotFound:
            detail = f"{uri} does not exist; expected a JSONL, JSON or Parquet file"
            raise InvalidSpec([{"pointer": pointer, "detail": detail}]) from None
    return path


def _bucket(uri: str, settings: Settings) -> tuple[S3Store, str]:
    """The bucket of an `s3://` URI, and the key in it."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return S3Store(s3_client(settings), bucket), key


def _write_config(run: Path, config: RunConfig) -> None:
    text = config.model_dump_json(indent=1) + "\n"
    path = run / "config.json"
    if not path.is_file() or path.read_text() != text:
        tmp = run / "config.json.tmp"
        tmp.write_text(text)
        tmp.replace(path)
