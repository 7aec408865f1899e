"""The programs that make up one Updraft, and the ports they need."""

from __future__ import annotations

import importlib.metadata
import socket
import sys
from dataclasses import dataclass, field

from jobs.settings import Settings

API_GRACE_S = 5.0
MLFLOW_GRACE_S = 10.0
MLFLOW_START_S = 180.0
"""Ended while it makes its tables, MLflow leaves a database that it never opens again."""


class StartError(Exception):
    """The service could not start; the message says what to do."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """How one child is run."""

    name: str
    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)
    grace_s: float = API_GRACE_S
    """How long it may take to end after TERM."""
    start_s: float = 0.0
    """How long its start, once begun, is let go on before TERM is sent."""
    ready_url: str | None = None
    port: int | None = None
    port_setting: str = ""


def programs(settings: Settings) -> list[Program]:
    """Every program of the settings' mode, in starting order."""
    found = [_mlflow(settings)] if settings.mode == "embedded" else []
    return [*found, _api(settings), _relay(), _worker(settings)]


def _api(settings: Settings) -> Program:
    host, port = settings.host, settings.port
    argv = ["-m", "uvicorn", "--factory", "api.app:serve", "--host", host, "--port", str(port)]
    # Event streams never end by themselves: two seconds, then they are cut and clients resume.
    argv += ["--timeout-graceful-shutdown", "2", "--no-access-log"]
    argv += ["--log-level", "warning", "--no-server-header"]
    return Program(
        name="api",
        argv=[sys.executable, *argv],
        ready_url=f"{local_url(settings)}/livez",
        port=port,
        port_setting="UPDRAFT_PORT",
    )


def _worker(settings: Settings) -> Program:
    argv = ["-m", "celery", "-A", "workers.app", "worker", "--loglevel", "INFO"]
    argv += ["--without-gossip", "--without-mingle"]
    # The stage in progress may use all of its own grace to checkpoint and be uploaded.
    grace = settings.stop_grace_seconds + 30
    return Program(name="worker", argv=[sys.executable, *argv], grace_s=grace)


def _relay() -> Program:
    return Program(name="relay", argv=[sys.executable, "-m", "workers.relay"])


def _mlflow(settings: Settings) -> Program:
    home = settings.home.resolve() / "mlflow"
    port = settings.mlflow_port
    argv = ["-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    argv += ["--backend-store-uri", f"sqlite:///{home / 'mlflow.db'}", "--serve-artifacts"]
    argv += ["--artifacts-destination", str(home / "artifacts")]
    return Program(
        name="mlflow",
        argv=[sys.executable, *argv],
        env={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        grace_s=MLFLOW_GRACE_S,
        start_s=MLFLOW_START_S,
        ready_url=f"http://127.0.0.1:{port}/health",
        port=port,
        port_setting="UPDRAFT_MLFLOW_PORT",
    )


def local_url(settings: Settings) -> str:
    """Where this machine reaches the API."""
    host = settings.host if settings.host not in ("0.0.0.0", "::") else "127.0.0.1"  # noqa: S104
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether this process could listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def check_startable(program: Program) -> None:
    """Refuse early what would only fail in a log file.

    Raises:
        StartError: its port is taken, or it is not installed.
    """
    if program.name == "mlflow" and not mlflow_installed():
        raise StartError(
            "the MLflow server is not installed; pip install 'updraft[server]' -c constraints.txt, "
            "or leave it out: updraft up --only api --only worker --only relay"
        )
    if program.port is None or port_is_free(program.port):
        return
    free = next((p for p in range(program.port + 1, program.port + 100) if port_is_free(p)), 0)
    hint = f"set {program.port_setting}={free}" if free else f"set {program.port_setting}"
    raise StartError(
        f"port {program.port} ({program.name}) is taken by another program; "
        f"stop that program, or {hint} and try again"
    )


def mlflow_installed() -> bool:
    """Whether the full MLflow is here; the client alone (mlflow-skinny) cannot serve."""
    return any(d.metadata["Name"] == "mlflow" for d in importlib.metadata.distributions())
