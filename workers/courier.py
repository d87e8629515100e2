"""Sends hints over this worker's own Celery app."""

from celery import Celery

from jobs.store import Hint
from jobs.wire import CELERY_TASK, node_queue


class CeleryCourier:
    def __init__(self, app: Celery) -> None:
        self._app = app

    def send(self, hint: Hint) -> None:
        attempt = hint.attempt
        self._app.send_task(
            CELERY_TASK,
            kwargs={"tenant": attempt.tenant, "job": attempt.job, "attempt": attempt.number},
            queue=node_queue(hint.node),
            ignore_result=True,
            retry=False,
        )
