"""One JSON object a line, with secrets taken out; the one place where they are taken out.

`redact` knows secrets by their form, and those of this deployment by their value (`hide`). Lines of
a log, messages of events and errors, and what a stage printed all pass here before they are kept.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import SecretStr

from jobs.settings import Settings

CONTEXT = (
    *("job_id", "stage", "attempt", "worker", "support_id"),
    *("request_id", "method", "path", "status", "ms", "traceparent"),
)
"""Names that `extra=` may carry into a line."""

QUIET = ("celery.app.trace", "celery.worker.strategy", "alembic.runtime.migration")
"""Loggers that say on every hint, or every start, what nobody needs."""

SHORTEST = 6
"""A value as short as a word is not hidden: it would be taken out of all kinds of text."""

REDACTED = "[redacted]"

# None reaches past a quotation mark or a backslash, so that a line of JSON stays one.
_VALUE = r"[^\s\"'\\&,;]+"
_SECRETS = re.compile(
    r"\b(?:hf_|upd_|ghp_)[A-Za-z0-9]{8,}"
    r"|\bwhsec_[A-Za-z0-9+/=]+"
    r"|\bsk-[A-Za-z0-9_-]{16,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    rf"|(?<=bearer )\s*{_VALUE}|(?<=authorization: basic )\s*{_VALUE}"
    rf"|(?<=x-amz-)(?:signature|credential|security-token)=(?:{_VALUE})"
    rf"|(?<=[?&])(?:signature|awsaccesskeyid|sig|token)=(?:{_VALUE})"
    r"|(?<=://)[^/\s:@\"']*:[^/\s@\"']+(?=@)"
    r"|(?:secret|password|passwd|pepper|api[_-]?key|access[_-]?key|auth[_-]?token|hub[_-]?token)"
    rf"[\w-]*(?:\\?[\"'])?\s*[:=]\s*(?:\\?[\"'])?{_VALUE}",
    re.IGNORECASE,
)
_hidden: re.Pattern[str] | None = None


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, the context fields that are set, and a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "t": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{k: record.__dict__[k] for k in CONTEXT if k in record.__dict__},
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return redact(json.dumps(line, default=str))


def redact(text: str) -> str:
    """The text without keys, tokens, signatures, passwords and this deployment's own secrets. What
    was a line of JSON still is one."""
    if _hidden is not None:
        text = _hidden.sub(REDACTED, text)
    return _SECRETS.sub(REDACTED, text)


def redact_file(source: Path, target: Path) -> None:
    """Copy a text file line by line, each redacted."""
    with source.open(errors="replace") as lines, target.open("w") as out:
        out.writelines(redact(line) for line in lines)


def hide(values: Iterable[str]) -> None:
    """From now on, take these out too, wherever they stand."""
    global _hidden
    worth = sorted({v for v in values if len(v) >= SHORTEST}, key=len, reverse=True)
    _hidden = re.compile("|".join(map(re.escape, worth))) if worth else None


def secrets_of(settings: Settings) -> list[str]:
    """Every secret that the settings hold, those in URLs too."""
    found = [v.get_secret_value() for _, v in settings if isinstance(v, SecretStr)]
    urls = (settings.database_url, settings.broker_url, settings.mlflow_tracking_uri)
    for password in (urlsplit(url).password for url in urls):
        if password:
            found += [password, unquote(password)]
    return found


def configure(settings: Settings | None = None, level: int = logging.INFO) -> None:
    """Send every logger of this process to stderr as JSON lines, without the settings' secrets."""
    if settings is not None:
        hide(secrets_of(settings))
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # retries; what matters is raised
