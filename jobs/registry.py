"""The model registry: MLflow, by its client alone. A mirror of the database, never the truth.

Every call may be repeated: a run and a version are looked up by their `job_id` tag before they are
made, and a metric with the same time, step and value is stored once.

MLflow brings pandas and 90 MiB, so it is imported where it is first called: a worker or a relay
that has nothing to tell it goes without.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import requests

from eagle3.config import TargetRef
from jobs.errors import Invalid, NotFound, RegistryRefused, RegistryUnavailable
from jobs.settings import Settings

if TYPE_CHECKING:
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

BATCH = 1000
"""Metrics in one request: MLflow's limit."""
PAGE = 200
"""Versions in one answer."""
PARAM_LENGTH = 6000
NAME_LENGTH, DIGEST_LENGTH = 500, 36
"""Of a dataset: MLflow's limits."""
TRAINING = {"mlflow.experimentKind": "custom_model_development"}
"""Has MLflow's pages show trainings, where it would guess that these are evaluations of prompts."""
REFUSALS = frozenset({"INVALID_PARAMETER_VALUE", "BAD_REQUEST"})
CREDENTIALS = frozenset({"UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED", "PERMISSION_DENIED"})
"""401 and 403."""
CREDENTIALS_HINT = (
    "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, to those "
    "of an account that may do this, and start the process again"
)


@dataclass(frozen=True)
class Point:
    """Values at a step; `millis` is the time since the epoch."""

    step: int
    millis: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Dataset:
    """What a run learned from, and how much of it there was."""

    name: str
    digest: str
    counted: Mapping[str, int]


class Registry:
    """What the mirror needs of MLflow. Every method may raise `RegistryUnavailable`, `Invalid` when
    MLflow refuses what it was sent, and of these `RegistryRefused` when it refuses who sent it."""

    def __init__(self, settings: Settings) -> None:
        # A server that is away must not hold the mirror for the client's default of minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
        self.uri = settings.mlflow_tracking_uri

    @cached_property
    def _client(self) -> MlflowClient:
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def ping(self) -> None:
        """Ask whether the server is there."""
        try:
            requests.get(f"{self.uri}/health", timeout=3).raise_for_status()
        except requests.RequestException as e:
            raise RegistryUnavailable(f"MLflow does not answer at {self.uri}") from e

    def ensure_run(
        self, job_id: str, target: str, *, params: Mapping[str, Any], tags: Mapping[str, str]
    ) -> str:
        """The id of the job's run, made with its parameters if it is not there yet."""
        from mlflow.entities import Param

        with _translated():
            experiment = self._experiment(experiment_name(target))
            found = self._client.search_runs(
                [experiment], f"tags.job_id = '{job_id}'", max_results=1
            )
            if found:
                return str(found[0].info.run_id)
            run = self._client.create_run(
                experiment, run_name=job_id, tags={**tags, "job_id": job_id, "base_model": target}
            )
            run_id = str(run.info.run_id)
            self._client.log_batch(
                run_id, params=[Param(k, str(v)[:PARAM_LENGTH]) for k, v in flat(params).items()]
            )
            return run_id

    def log_metrics(self, run_id: str, points: Sequence[Point]) -> None:
        """Log values at their steps."""
        from mlflow.entities import Metric

        metrics = [
            Metric(name, float(value), point.millis, point.step)
            for point in points
            for name, value in point.metrics.items()
        ]
        with _translated():
            for start in range(0, len(metrics), BATCH):
                self._client.log_batch(run_id, metrics=metrics[start : start + BATCH])

    def log_dataset(self, run_id: str, data: Dataset | None) -> None:
        """Name what a run learned from; told again, it stays one."""
        from mlflow.entities import Dataset as Told
        from mlflow.entities import DatasetInput, InputTag

        if data is None:
            return
        told = Told(
            data.name[:NAME_LENGTH],
            data.digest[:DIGEST_LENGTH],
            source_type="updraft",
            source=json.dumps({"source": data.name}),
            profile=json.dumps(dict(data.counted)),
        )
        with _translated():
            self._client.log_inputs(
                run_id, [DatasetInput(told, [InputTag("mlflow.data.context", "training")])]
            )

    def set_tags(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Set tags of a run."""
        from mlflow.entities import RunTag

        with _translated():
            self._client.log_batch(run_id, tags=[RunTag(k, v) for k, v in tags.items()])

    def log_files(self, run_id: str, folder: Path, below: str | None = None) -> None:
        """Copy a folder's files to the run's artifacts, under `below` when given."""
        with _translated():
            self._client.log_artifacts(run_id, str(folder), below)

    def artifact_uri(self, run_id: str) -> str:
        """Where MLflow keeps the run's artifacts."""
        with _translated():
            return str(self._client.get_run(run_id).info.artifact_uri)

    def end_run(self, run_id: str, status: str) -> None:
        """Close a run as FINISHED, FAILED or KILLED."""
        with _translated():
            self._client.set_terminated(run_id, status)

    def ensure_version(
        self,
        name: str,
        *,
        source: str,
        run_id: str | None,
        job_id: str,
        tags: Mapping[str, str],
        description: str = "",
    ) -> str:
        """The version of the job's draft, made under `name` if it is not there yet."""
        with _translated():
            self._ensure_model(name, tags.get("base_model", ""))
            found = self._client.search_model_versions(
                f"name = '{name}' and tags.job_id = '{job_id}'"
            )
            if found:
                return str(found[0].version)
            version = self._client.create_model_version(
                name,
                source=source,
                run_id=run_id,
                tags={**tags, "job_id": job_id},
                description=description,
                await_creation_for=0,
            )
            return str(version.version)

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Point an alias at a version."""
        with _translated():
            self._client.set_registered_model_alias(name, alias, version)

    def version_of(self, name: str, alias: str) -> str | None:
        """The version an alias points at."""
        with _translated():
            aliases: dict[str, str] = self._client.get_registered_model(name).aliases
        return aliases.get(alias)

    def tag_version(self, name: str, version: str, tags: Mapping[str, str]) -> None:
        """Set tags of a version."""
        with _translated():
            for key, value in tags.items():
                self._client.set_model_version_tag(name, version, key, value)

    def versions_since(self, since: datetime) -> list[tuple[str, str, dict[str, str]]]:
        """Name, number and tags of all versions that were made since then, the oldest first."""
        found: list[tuple[str, str, dict[str, str]]] = []
        token: str | None = None
        with _translated():
            while True:
                page = self._client.search_model_versions(
                    max_results=PAGE, order_by=["creation_timestamp DESC"], page_token=token
                )
                new = [v for v in page if v.creation_timestamp >= since.timestamp() * 1000]
                found += [(v.name, str(v.version), dict(v.tags)) for v in new]
                token = page.token
                if not token or len(new) < len(page):
                    return found[::-1]

    def model_uri(self, ref: TargetRef) -> str:
        """Where the files of a `models:/` target are: the version's source, often `s3://…`.

        Raises:
            NotFound: no such model, version or alias.
        """
        name, revision = ref.location, ref.revision or ""
        with _translated():
            try:
                if revision.startswith("@"):
                    found = self._client.get_model_version_by_alias(name, revision[1:])
                    revision = found.version
                return str(self._client.get_model_version_download_uri(name, revision))
            except _refused() as e:
                if e.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                    raise NotFound(f"target {ref}: {e.message}") from e
                raise

    def download(self, uri: str, folder: Path) -> None:
        """Fetch files that MLflow itself keeps into a folder."""
        import mlflow.artifacts

        with _translated():
            mlflow.artifacts.download_artifacts(
                artifact_uri=uri, dst_path=str(folder), tracking_uri=self.uri
            )

    def _experiment(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        try:
            return str(self._client.create_experiment(name, tags=TRAINING))
        except _refused() as e:
            if e.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            return str(self._client.get_experiment_by_name(name).experiment_id)

    def _ensure_model(self, name: str, base_model: str) -> None:
        try:
            self._client.create_registered_model(
                name,
                tags={"base_model": base_model},
                description=f"EAGLE-3 drafts for `{base_model}` and its checkpoints. A deployment "
                "takes the alias `champion`, or `for-` and the first 12 digits of its checkpoint's "
                "weights hash or commit.",
            )
        except _refused() as e:
            if e.error_code != "RESOURCE_ALREADY_EXISTS":
                raise


def experiment_name(target: str) -> str:
    """`eagle3/org__model` for a hub target, and alike for the other kinds."""
    ref = TargetRef.parse(target)
    tail = [p for p in ref.location.removeprefix("s3://").split("/") if p][-2:] or [ref.kind]
    return "eagle3/" + "__".join(tail)


def texts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as tags: fractions to four digits; what is None is left out."""
    return {
        name: f"{value:.4g}" if isinstance(value, float) else str(value)
        for name, value in facts.items()
        if value is not None
    }


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as `section.key`."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            out.update(flat(value, f"{prefix}{key}."))
        else:
            out[prefix + key] = value
    return out


def _refused() -> type[MlflowException]:
    """What MLflow's client raises; named only once something was raised."""
    from mlflow.exceptions import MlflowException

    found: type[MlflowException] = MlflowException
    return found


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except _refused() as e:
        if e.error_code in CREDENTIALS:
            raise RegistryRefused(
                f"MLflow refuses the credentials: {e.message}; {CREDENTIALS_HINT}"
            ) from e
        if e.error_code in REFUSALS and not isinstance(e.__cause__, requests.RequestException):
            raise Invalid(f"MLflow refused: {e.message}") from e
        text = str(e.message).partition(" failed with exception")[0]
        raise RegistryUnavailable(f"MLflow does not serve this now: {text}") from e
    except requests.RequestException as e:
        raise RegistryUnavailable(f"MLflow does not answer ({type(e).__name__})") from e
