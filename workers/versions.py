"""Looks for new versions of registered models that no webhook has told of: MLflow sends each a few
times within seconds, and while the API is away, or MLflow may not reach it, that is for nothing."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

from jobs.db import Database
from jobs.errors import (
    Invalid,
    QuotaExceeded,
    RegistryRefused,
    RegistryUnavailable,
    UpdraftError,
)
from jobs.mlflow_hooks import ModelVersion, attach_version, left_out
from jobs.registry import Registry
from jobs.settings import Settings

log = logging.getLogger(__name__)

EVERY_S = 60.0


class Watch:
    """One look is `look()`; what is there again and again is said once."""

    def __init__(self, db: Database, settings: Settings, registry: Registry) -> None:
        self.db, self.settings, self.registry = db, settings, registry
        self._said: set[tuple[str, str, type[UpdraftError]]] = set()

    def look(self) -> int:
        """Attach a draft to each new version that has none yet. Returns to how many.

        Raises:
            RegistryUnavailable: MLflow is away.
            RegistryRefused: it refuses the credentials.
        """
        since = self.db.now() - timedelta(hours=self.settings.mlflow_hook_hours)
        made = [
            ModelVersion(name=name, version=version, tags=tags)
            for name, version, tags in self.registry.versions_since(since)
        ]
        return sum(self._attach(one) for one in made if not left_out(one, self.settings))

    def _attach(self, made: ModelVersion) -> bool:
        try:
            with self.db.write() as session:
                taken = attach_version(session, made, settings=self.settings, now=self.db.now())
        except (Invalid, QuotaExceeded) as e:  # other versions are not held up
            if (told := (made.name, made.version, type(e))) not in self._said:
                self._said.add(told)
                log.warning("version %s of %s is not attached: %s", made.version, made.name, e)
            return False
        if taken.attachment_id is None or taken.replayed:
            return False
        log.info("version %s of %s: %s", made.version, made.name, taken.attachment_id)
        return True


def watch_loop(watch: Watch, stop: threading.Event) -> None:
    """Look every minute until told to stop; not at all where no names are configured."""
    settings = watch.settings
    while settings.mlflow_hook_names and settings.mlflow_hook_hours:
        try:
            watch.look()
        except RegistryUnavailable:
            pass  # the mirror says so
        except RegistryRefused as e:  # asking again does not help
            log.error("no new versions are looked for any more: %s", e)
            return
        except Exception:  # the loop outlives whatever its servers do
            log.exception("no look for new versions; trying again in %g s", EVERY_S)
        if stop.wait(EVERY_S):
            return
