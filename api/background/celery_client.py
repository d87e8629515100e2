"""Sends hints to nodes through Celery. The library is imported for the first hint, or by `import_celery`."""

import threading
from typing import Any

from jobs.model.settings import Settings
from jobs.scheduling.celery_config import celery_config
from jobs.scheduling.hints import celery_message
from jobs.store import Hint

#: Celery puts another module in its own place while it is imported: a second thread that comes then finds neither.
_importing = threading.Lock()


class CeleryHintSender:
    """A `jobs.scheduling.hints.HintSender`. One thread sends; another may prepare."""

    def __init__(self, settings: Settings) -> None:
        self._config = celery_config(settings)
        self._app: Any = None
        self._lock = threading.Lock()

    def import_celery(self) -> None:
        """Import Celery now, so that the first hint need not wait for it."""
        with self._lock:
            if self._app is None:
                with _importing:
                    from celery import Celery

                app = Celery("shardyard", set_as_current=False)
                app.conf.update(self._config)
                self._app = app

    def send(self, hint: Hint) -> None:
        """Raises whatever the broker's client raises; nothing is tried twice here."""
        self.import_celery()
        self._app.send_task(**celery_message(hint))

    def close(self) -> None:
        with self._lock:
            if self._app is not None:
                self._app.close()
