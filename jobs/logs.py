"""One JSON object a line, with secrets taken out."""

from __future__ import annotations

import json
import logging
import re
import sys
from datetime import UTC, datetime

CONTEXT = ("job_id", "stage", "attempt", "worker")
"""Names that `extra=` may carry into a line."""

QUIET = ("celery.app.trace", "celery.worker.strategy", "alembic.runtime.migration")
"""Loggers that say on every hint, or every start, what nobody needs."""

_SECRETS = re.compile(
    r"(hf_|upd_)[A-Za-z0-9]{8,}|(?i:bearer)\s+\S+|X-Amz-[A-Za-z]+=[^&\s]+|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
)


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
    """The text with tokens, signatures and passwords of URLs replaced."""
    return _SECRETS.sub("[redacted]", text)


def configure(level: int = logging.INFO) -> None:
    """Send every logger of this process to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # retries; what matters is raised
