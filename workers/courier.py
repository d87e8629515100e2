"""Sends hints over this worker's own Celery app."""

from celery import Celery

from jobs.courier import message
from jobs.store import Hint


class CeleryCourier:
    def __init__(self, app: Celery) -> None:
        self._app = app

    def send(self, hint: Hint) -> None:
        self._app.send_task(**message(hint))
