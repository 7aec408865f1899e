"""`updraft doctor`: what the service needs on this machine, and what to do where it lacks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal, NamedTuple

import httpx
import psutil
import typer
from kombu import Connection
from kombu.exceptions import OperationalError
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from api.cli.console import Exit, JsonFlag, out, print_json
from api.embedded import running_instance
from api.programs import mlflow_installed, port_is_free
from jobs.db import Database
from jobs.errors import UpdraftError
from jobs.models import Worker
from jobs.settings import Settings
from jobs.store import open_store

GIB = 1 << 30
NEEDED_DISK = 6 * GIB
"""The demo: target, features, checkpoints and draft."""

NEEDED_MEMORY = 8 * GIB
TORCH_TIMEOUT_S = 120.0
MARKS = {"ok": ("✔", "green"), "warn": ("!", "yellow"), "fail": ("✘", "red")}


class Check(NamedTuple):
    """One finding; `fix` says what to do unless it is ok."""

    name: str
    status: Literal["ok", "warn", "fail"]
    detail: str
    fix: str = ""


def doctor(as_json: JsonFlag = False) -> None:
    """Check Python, torch, disk, memory, ports, database, store, MLflow and broker."""
    settings = Settings()
    found: list[Check] = []
    for check in _checks(settings):
        found.append(check)
        if not as_json:
            _show(check)
    failed = [check.name for check in found if check.status == "fail"]
    if as_json:
        print_json([check._asdict() for check in found])
    elif not failed:
        out.print("everything needed is here")
    raise typer.Exit(Exit.UNEXPECTED if failed else Exit.OK)


def _show(check: Check) -> None:
    symbol, style = MARKS[check.status]
    out.print(symbol, style=style, end=" ")
    out.print(f"{check.name:<10}{check.detail}", markup=False, soft_wrap=True)
    if check.fix:
        out.print(f"  → {check.fix}", style="cyan", markup=False, soft_wrap=True)


def _checks(settings: Settings) -> Iterator[Check]:
    running = running_instance(settings)
    yield _python()
    yield _torch()
    yield _disk(settings.home)
    yield _memory()
    for name, port, setting in _ports(settings):
        yield _port(name, port, setting, running is not None)
    yield _asked("database", lambda: _ask_database(settings), "check UPDRAFT_DATABASE_URL")
    yield _asked("store", lambda: open_store(settings).ping(), "check UPDRAFT_STORE_URL")
    yield _broker(settings)
    yield _mlflow(settings, running is not None)
    if running or settings.mode == "full":
        yield _workers(settings)


def _python() -> Check:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Check("python", "ok", f"{version} ({sys.executable})")


def _torch() -> Check:
    # In a process of its own: this one stays free of torch.
    code = "import torch, transformers; print(torch.__version__, torch.cuda.device_count())"
    fix = "install the worker's packages: pip install 'updraft[worker]' -c constraints.txt"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=TORCH_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        detail = f"import took more than {TORCH_TIMEOUT_S:.0f} s"
        return Check("torch", "fail", detail, "try again on a quieter machine or a faster disk")
    if done.returncode:
        return Check("torch", "fail", (done.stderr.strip() or "no torch").splitlines()[-1], fix)
    version, gpus = done.stdout.split()[-2:]
    return Check("torch", "ok", f"{version}, {gpus} GPU" if gpus != "0" else f"{version}, CPU")


def _disk(home: Path) -> Check:
    place = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(place).free
    detail = f"{free / GIB:.1f} GiB free at {place}"
    if not os.access(place, os.W_OK):
        return Check(
            "disk", "fail", f"{place} is not writable", "set UPDRAFT_HOME to another place"
        )
    if free < NEEDED_DISK:
        return Check(
            "disk", "fail", detail, f"free {NEEDED_DISK / GIB:.0f} GiB or set UPDRAFT_HOME"
        )
    return Check("disk", "ok", detail)


def _memory() -> Check:
    free = psutil.virtual_memory().available
    detail = f"{free / GIB:.1f} GiB available, {os.cpu_count()} cores"
    if free < NEEDED_MEMORY:
        return Check("memory", "warn", detail, "the demo may need 8 GiB: close other programs")
    return Check("memory", "ok", detail)


def _ports(settings: Settings) -> list[tuple[str, int, str]]:
    ports = [("api", settings.port, "UPDRAFT_PORT")]
    if settings.mode == "embedded":
        ports.append(("mlflow", settings.mlflow_port, "UPDRAFT_MLFLOW_PORT"))
    return ports


def _port(name: str, port: int, setting: str, running: bool) -> Check:
    label = f"port {port}"
    if running:
        return Check(label, "ok", f"{name}: used by the service that runs")
    if port_is_free(port):
        return Check(label, "ok", f"{name}: free")
    return Check(label, "fail", f"{name}: taken by another program", f"stop it or set {setting}")


def _asked(name: str, ask: Callable[[], None], fix: str) -> Check:
    try:
        ask()
    except (UpdraftError, SQLAlchemyError, OSError) as error:
        return Check(name, "fail", f"{type(error).__name__}: {error}".splitlines()[0], fix)
    return Check(name, "ok", "answers")


def _ask_database(settings: Settings) -> None:
    db = Database(settings.database_url)
    try:
        db.ping()
    finally:
        db.close()


def _workers(settings: Settings) -> Check:
    db = Database(settings.database_url)
    since = db.now() - timedelta(seconds=3 * settings.heartbeat_seconds)
    try:
        with db.read() as session:
            count = session.scalar(
                select(func.count()).select_from(Worker).where(Worker.seen_at >= since)
            )
    except SQLAlchemyError as error:
        return Check("workers", "warn", f"unknown ({type(error).__name__})", "see database")
    finally:
        db.close()
    if not count:
        fix = "start one: updraft up (logs are under HOME/logs)"
        return Check("workers", "fail", "none has shown itself lately; jobs wait", fix)
    return Check("workers", "ok", f"{count} at work or ready")


def _broker(settings: Settings) -> Check:
    if settings.mode == "embedded":
        return Check("broker", "ok", f"a directory ({settings.broker_dir})")

    def ask() -> None:
        try:
            with Connection(settings.broker_url, connect_timeout=3) as broker:
                broker.ensure_connection(max_retries=1, timeout=3)
        except OperationalError as error:
            raise OSError("does not answer") from error

    return _asked("broker", ask, "check UPDRAFT_BROKER_URL and that Redis runs")


def _mlflow(settings: Settings, running: bool) -> Check:
    url = settings.mlflow_tracking_uri
    if settings.mode == "embedded" and not running:
        if not mlflow_installed():
            fix = "pip install 'updraft[server]' -c constraints.txt"
            return Check("mlflow", "fail", "the MLflow server is not installed", fix)
        return Check("mlflow", "ok", "installed; `updraft up` starts it")
    try:
        httpx.get(f"{url}/health", timeout=5, trust_env=False).raise_for_status()
    except httpx.HTTPError as error:
        fix = "jobs go on without it; check UPDRAFT_MLFLOW_TRACKING_URI"
        return Check("mlflow", "warn", f"{url}: {type(error).__name__}", fix)
    return Check("mlflow", "ok", url)
