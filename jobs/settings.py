"""All settings of the service, read once from `UPDRAFT_*` variables or a `.env` file.

Embedded mode derives everything from `home`. Full mode names its servers and refuses to start
without what makes it safe to expose. Passed down as an object; nothing else reads the environment.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from jobs.needs import NEEDS_PATTERN

Seconds = Annotated[float, Field(gt=0)]

EMBEDDED_DEFAULTS: dict[str, Any] = {
    "lease_seconds": 30.0,
    "heartbeat_seconds": 5.0,
    "sweep_seconds": 2.0,
    "resend_seconds": 10.0,
    "upload_checkpoints": False,
    "max_priority": 100,
}
"""One machine notices at once what a cluster notices in a minute; its disk outlives a worker."""


KNOWN_SECRETS = frozenset(
    "admin changeme change-me default example guest minio minioadmin minio123 mlflow password "
    "postgres redis root secret test updraft".split()
)
"""What stands in manuals and example files: a server that still has one is open to everybody."""


class Settings(BaseSettings):
    """Where things are, how long they may take, and what is allowed."""

    model_config = SettingsConfigDict(
        env_prefix="UPDRAFT_",
        env_file=".env",
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,  # it holds the secrets
    )

    mode: Literal["embedded", "full"] = "embedded"
    """`embedded`: SQLite, a directory and no servers. `full`: PostgreSQL, Redis and S3."""
    home: Path = Path(".updraft")
    """Directory of everything embedded mode keeps; made absolute at start."""
    host: str = "127.0.0.1"
    """Address the API binds to. Embedded mode has no keys and so accepts loopback only."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8300
    """Port of the API."""
    database_url: str = ""
    """SQLAlchemy URL. Default: `sqlite:///HOME/updraft.db`. Full mode: `postgresql://…`."""
    broker_url: str = ""
    """Celery broker. Default: a directory, `filesystem://`. Full mode: `redis://…`."""
    store_url: str = ""
    """Object store: `file:///dir` or `s3://bucket/prefix`. Default: `file://HOME/store`."""
    s3_endpoint_url: str | None = None
    """S3 server when it is not AWS."""
    s3_region: str = "us-east-1"
    """Region used to sign S3 requests."""
    s3_access_key: SecretStr | None = None
    """S3 access key; the usual AWS lookup applies when empty."""
    s3_secret_key: SecretStr | None = None
    """S3 secret key."""
    s3_allowed: tuple[str, ...] = ()
    """`s3://bucket/prefix` roots that targets and prompts may be read from, as a JSON list."""
    target_roots: tuple[Path, ...] = ()
    """Directories that `file://` and `gguf:` targets may lie under in full mode, as a JSON list."""
    engines_allowed: tuple[str, ...] = ()
    """Addresses (`base_url`) of the servers that may write a job's answers, as a JSON list; a job
    that names another one is refused. All of them get `engine_api_key`."""
    engine_api_key: SecretStr | None = None
    """Key of those servers. Only `regenerate` gets it; never logged."""
    mlflow_port: Annotated[int, Field(ge=1, le=65535)] = 8301
    """Port of the MLflow server that embedded mode starts."""
    mlflow_tracking_uri: str = ""
    """MLflow server. Default: `http://127.0.0.1:MLFLOW_PORT`."""
    mlflow_hook_secret: Annotated[SecretStr, Field(min_length=16)] | None = None
    """Secret that MLflow signs its webhooks with, of 16 characters or more; `POST /v1/hooks/mlflow`
    takes none when empty."""
    mlflow_hook_names: tuple[str, ...] = ()
    """Registered models whose new versions get a draft, as a JSON list of names or patterns
    (`acme-*`). The relay looks for them, and a webhook is sooner."""
    mlflow_hook_hours: Annotated[float, Field(ge=0)] = 24.0
    """How far back the relay looks for versions that no webhook told of; 0 is never."""
    mlflow_hook_policy: Path | None = None
    """Policy file of these attachments; the defaults when empty."""
    mlflow_hook_owner: str = "local"
    """Owner of these attachments: in full mode the `owner` of an API key, which they are charged
    to. Required there with the secret or names."""
    api_key_pepper: SecretStr | None = None
    """Secret that API keys are hashed with (32 characters or more). Required in full mode."""
    hub_token: SecretStr | None = None
    """Token for gated and private hub models, of owners that have none of their own. Only `resolve`
    and `prepare` get it; never logged."""
    price_per_hour: Annotated[float, Field(ge=0)] | None = None
    """What an hour of a worker costs, in any currency; the report shows times alone when empty."""
    max_active_jobs: Annotated[int, Field(ge=1)] = 1000
    """Jobs that one API key may have queued or running. This and the next four hold for every key
    that has no quota of its own."""
    max_running_jobs: Annotated[int, Field(ge=1)] | None = None
    """Jobs of one key that may run at once; no limit when empty."""
    gpu_hours_per_day: Annotated[float, Field(ge=0)] | None = None
    """GPU-hours that one key may take a UTC day; its other jobs wait for the next. No limit when
    empty."""
    storage_gb: Annotated[float, Field(gt=0)] | None = None
    """Stage outputs that one key may keep in the object store, in GB; no limit when empty."""
    max_priority: Annotated[int, Field(ge=-100, le=100)] = 0
    """Highest priority that one key may ask for. Embedded default: 100."""
    default_needs: Annotated[str, Field(pattern=NEEDS_PATTERN)] = "any"
    """What a worker must have for a job that does not say: `any`, `cpu`, `gpu`, `gpu:h100x8`, …"""
    worker_has: Annotated[str, Field(pattern=NEEDS_PATTERN)] | None = None
    """What this worker has, `cpu` or `gpu:h100x8`; found out from the machine when empty."""
    requests_per_second: Annotated[float, Field(gt=0)] = 100.0
    """Requests that one API key may make of one API process, on average; twice as many at once."""
    webhook_hosts: tuple[str, ...] = ()
    """Hosts of webhook endpoints that may have a private address, and may be `http://`, as a JSON
    list of `host` or `host:port`. All others must be `https://` and public."""
    idempotency_days: Annotated[int, Field(ge=1)] = 30
    """How long an idempotency key is remembered."""

    lease_seconds: Seconds = 90.0
    """How long a worker owns a stage without a heartbeat. Embedded default: 30."""
    heartbeat_seconds: Seconds = 20.0
    """Time between heartbeats; less than half of a lease. Embedded default: 5."""
    sweep_seconds: Seconds = 30.0
    """Time between two looks for expired leases and lost hints. Embedded default: 2."""
    relay_seconds: Seconds = 0.2
    """Time between two looks into an empty outbox."""
    resend_seconds: Seconds = 120.0
    """A stage that has waited this long is announced to the workers again. Embedded default: 10."""
    max_attempts: Annotated[int, Field(ge=1)] = 3
    """Times a stage is tried, counted when a worker takes it."""
    retry_base_seconds: Seconds = 5.0
    """Wait before the first retry; doubled each time, with jitter."""
    retry_cap_seconds: Seconds = 300.0
    """Longest wait before a retry."""
    stop_grace_seconds: Seconds = 120.0
    """Time a stage gets to save its work between TERM and KILL."""
    no_progress_seconds: Seconds = 1800.0
    """A stage that prints nothing for this long is stopped and tried again."""
    max_runtime_seconds: Seconds = 7 * 86400.0
    """A stage that runs longer than this, all its attempts together, is stopped and fails."""
    stage_seconds: dict[str, Seconds] = {}
    """The same for single stages, as JSON: `{"train": 86400}`."""
    keep_outputs_days: Annotated[float, Field(ge=0)] = 30.0
    """Stage outputs and checkpoints of ended jobs are kept this long after their last use, to be
    used by other jobs and for a retry."""
    keep_runs_days: Annotated[float, Field(ge=0)] = 7.0
    """Run directories of ended jobs are kept this long on their worker."""
    store_gb: Annotated[float, Field(gt=0)] | None = None
    """Stage outputs kept in the object store, of all keys together, in GB; the least recently used
    go first. No limit when empty."""
    gc_seconds: Annotated[float, Field(ge=0)] = 3600.0
    """Time between two collections of what nobody needs; 0 is never (`updraft gc` by hand)."""

    upload_checkpoints: bool = True
    """Store training checkpoints, so that another machine can go on. Embedded default: false."""
    runs_dir: Path = Path()
    """Run directories of this worker's jobs. Default: `HOME/runs`."""
    cache: Path = Path("~/.cache/updraft")
    """Converted targets are kept here, shared by all runs."""
    hub_offline: bool = False
    """Never ask a model hub; use what its local cache holds."""
    stage_command: tuple[str, ...] = (sys.executable, "-m", "eagle3.cli")
    """Command line that `<stage> RUN` is appended to, as a JSON list."""

    @model_validator(mode="before")
    @classmethod
    def _embedded_defaults(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("mode", "embedded") == "embedded":
            return {**EMBEDDED_DEFAULTS, **data}
        return data

    @field_validator("home", "cache", "runs_dir")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        return path if path == Path() else path.expanduser().absolute()

    @model_validator(mode="after")
    def _derived_and_safe(self) -> Self:
        for name, value in self._defaults().items():
            if not getattr(self, name) or getattr(self, name) == Path():
                object.__setattr__(self, name, value)
        if self.heartbeat_seconds * 2 > self.lease_seconds:
            raise ValueError(
                f"heartbeat_seconds {self.heartbeat_seconds:g} is more than half of lease_seconds "
                f"{self.lease_seconds:g}: one late beat would lose the lease"
            )
        if self.mlflow_hook_hours > 24 * self.idempotency_days:
            raise ValueError(
                f"mlflow_hook_hours {self.mlflow_hook_hours:g} is more than idempotency_days "
                f"{self.idempotency_days}: a version that is not remembered would be attached again"
            )
        if self.mode == "full":
            self._refuse_unsafe_full()
        elif self.host not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError(
                f"host {self.host!r}: embedded mode has no API keys and binds to loopback only; "
                "set UPDRAFT_MODE=full to serve others"
            )
        return self

    def _defaults(self) -> dict[str, str | Path]:
        return {
            "database_url": f"sqlite:///{self.home / 'updraft.db'}",
            "broker_url": "filesystem://localhost",
            "store_url": f"file://{self.home / 'store'}",
            "mlflow_tracking_uri": f"http://127.0.0.1:{self.mlflow_port}",
            "runs_dir": self.home / "runs",
        }

    def _refuse_unsafe_full(self) -> None:
        pepper = self.api_key_pepper.get_secret_value() if self.api_key_pepper else ""
        if len(pepper) < 32:
            raise ValueError(
                "api_key_pepper: full mode needs a secret of at least 32 characters; make one with "
                "python -c 'import secrets; print(secrets.token_hex(32))' and set "
                "UPDRAFT_API_KEY_PEPPER"
            )
        if not self.database_url.startswith("postgresql"):
            raise ValueError("database_url: full mode needs a postgresql:// URL")
        if not self.broker_url.startswith(("redis://", "rediss://")):
            raise ValueError("broker_url: full mode needs a redis:// or rediss:// URL")
        if not self.store_url.startswith("s3://"):
            raise ValueError("store_url: full mode needs s3://bucket/prefix")
        hooked = self.mlflow_hook_secret is not None or self.mlflow_hook_names
        if hooked and self.mlflow_hook_owner == "local":
            raise ValueError(
                "mlflow_hook_owner: full mode needs the owner that MLflow's attachments are "
                "charged to; `GET /v1/api-keys` has it"
            )
        self._refuse_known_secrets(pepper)

    def _refuse_known_secrets(self, pepper: str) -> None:
        """A default password is refused like a missing one; an address without any may be right,
        where the server knows its clients by other means."""
        secret, hook = self.s3_secret_key, self.mlflow_hook_secret
        found = {
            "api_key_pepper": pepper,
            "database_url": urlsplit(self.database_url).password,
            "broker_url": urlsplit(self.broker_url).password,
            "s3_secret_key": secret.get_secret_value() if secret else None,
            "mlflow_hook_secret": hook.get_secret_value() if hook else None,
        }
        for name, value in found.items():
            if value and _is_known(value):
                raise ValueError(
                    f"{name}: its secret is one that everybody knows; full mode needs one of your "
                    "own: python -c 'import secrets; print(secrets.token_hex(32))'"
                )

    @property
    def broker_dir(self) -> Path:
        """Folders of the filesystem broker."""
        return self.home / "broker"


def _is_known(secret: str) -> bool:
    """Whether a secret is a known one, or made of one again and again."""
    text = secret.lower()
    return any(not text.replace(known, "").strip("-_.") for known in KNOWN_SECRETS)


def reference_markdown() -> str:
    """The settings as a Markdown table: `docs/settings.md`."""
    rows = [
        f"| `UPDRAFT_{name.upper()}` | {_default(name) or '—'} | {_text(name)} |"
        for name in Settings.model_fields
    ]
    return (
        "# Settings\n\n"
        "Read from the environment or from a `.env` file in the working directory. Lists are JSON."
        " Written from `jobs/settings.py` by `python -m jobs.generate`.\n\n"
        "| variable | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )


def env_example() -> str:
    """The settings as a commented `.env` file: `.env.example`."""
    lines = ["# Copy to .env and uncomment what you need. Embedded mode needs none of it.", ""]
    for name in Settings.model_fields:
        lines += [f"# {_text(name)}", f"# UPDRAFT_{name.upper()}={_default(name, code=False)}", ""]
    return "\n".join(lines)


def _text(name: str) -> str:
    return " ".join((Settings.model_fields[name].description or "").split())


def _default(name: str, *, code: bool = True) -> str:
    value = Settings.model_fields[name].default
    if name == "stage_command":
        text = '["python", "-m", "eagle3.cli"]'
    elif value in (None, "", (), {}, Path()):
        text = ""
    else:
        text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"`{text}`" if text and code else text
