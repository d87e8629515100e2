"""The Celery app of a node: one task, which starts a supervisor and returns.

`python -m workers` runs it, and so does `python -m celery -A workers.app worker`: this module is an
entry point, so it reads the settings when it is imported. The pool is pinned to threads with one at a
time, because a task only forks, and prefork's daemonic children may have none of their own.
"""

import os
import signal
import warnings
from typing import Any

import structlog
from celery import Celery, signals
from celery.apps.worker import Worker
from celery.exceptions import SecurityWarning
from kombu.entity import Queue

from jobs.files import identity
from jobs.protocol.names import CELERY_TASK, node_queue
from jobs.scheduling.celery_config import celery_config
from jobs.scheduling.hints import celery_message
from jobs.store import AttemptId, Hint
from jobs.store.client import RedisStore
from jobs.support.logging_config import configure_logging
from jobs.support.service_manager import ServiceManager, take_service_manager
from shardyard.contract.errors import Unavailable
from workers.node import environments
from workers.node.agent import Agent
from workers.node.block.allocation import allocation_of, read_settings
from workers.node.config import NodeConfig
from workers.node.devices import discover_devices
from workers.node.forkserver import ForkFailed
from workers.node.registration import NodeTaken
from workers.node.shutdown import ShutdownOptions
from workers.sandbox import run_as
from workers.sandbox.box.choice import choose_box
from workers.sandbox.box.confinement import OOM_SCORE_SERVICE, set_oom_score
from workers.sandbox.check import NotConfined

log = structlog.get_logger(__name__)

# Celery warns root of pickled messages. Ours are JSON, and name no more than an attempt.
warnings.filterwarnings("ignore", category=SecurityWarning)

settings = read_settings()
shutdown_options = ShutdownOptions()
_stop_requests = 0


class QuietWorker(Worker):  # type: ignore[misc]
    """Without the chatter between workers: nothing here uses it, and it costs Redis commands."""

    def on_before_init(self, **kwargs: Any) -> None:
        super().on_before_init(**kwargs | {"quiet": True})

    def setup_instance(self, **kwargs: Any) -> None:
        super().setup_instance(**kwargs | {"without_gossip": True, "without_mingle": True})


class AppHintSender:
    """Sends hints over this worker's own Celery app."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def send(self, hint: Hint) -> None:
        self._app.send_task(**celery_message(hint))


def create_app() -> Celery:
    app = Celery("shardyard", set_as_current=True)
    app.Worker = app.subclass_with_self(QuietWorker)
    app.conf.update(
        celery_config(settings),
        task_queues=[Queue(node_queue(settings.node))],  # type: ignore[no-untyped-call]
        worker_pool="threads",
        worker_concurrency=1,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_max_retries=None,
    )
    return app


app = create_app()
agent: Agent | None = None
consumer: Any = None
manager = ServiceManager()


@app.task(name=CELERY_TASK)  # type: ignore[untyped-decorator]
def start_attempt(tenant: str, job: str, attempt: int) -> None:
    """The hint that an attempt waits on this node. Its arguments are ids; everything else is read from Redis."""
    assert agent is not None
    try:
        agent.start_attempt(AttemptId(tenant, job, attempt))
    except Unavailable as error:
        log.warning("hint_dropped", error=str(error))  # it is sent again


@signals.celeryd_init.connect  # type: ignore[untyped-decorator]
def _prepare_agent(**_: Any) -> None:
    """Before Celery has threads: fork the server that supervisors come from.

    Celery logs an exception of a signal handler and continues, so a worker that cannot work must exit here.
    """
    global agent, manager
    os.umask(identity.UMASK)
    manager = take_service_manager()
    set_oom_score(OOM_SCORE_SERVICE)
    configure_logging(settings.log_level)
    try:
        control = RedisStore.from_url(settings.control_url())
        known = environments.find_environments(settings.environments)
        devices = discover_devices(settings.devices, allocation_of(settings))
        before = max(0, settings.virtual_node - 1)
        accounts = run_as.choose_accounts(settings.run_as, devices, settings.nodes_here, before)
        plan, rights = choose_box(settings, known, accounts, devices)
        if plan is None:
            run_as.warn_of_access(accounts, len(devices) * settings.nodes_here)
        idle_exit = shutdown_options.idle_exit
        config = NodeConfig(settings, devices, known, accounts, rights, plan, idle_exit, manager)
        agent = Agent(config, control, AppHintSender(app), _reconnect_consumer)
        agent.prepare()
    except (ValueError, NodeTaken, NotConfined, ForkFailed, OSError) as error:
        log.error("cannot_start", why=str(error))
        raise SystemExit(2) from None


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _start_agent(sender: Any, **_: Any) -> None:
    global consumer
    assert agent is not None
    consumer = sender
    agent.start()


def _reconnect_consumer() -> None:
    """Restart the consumer, as Celery does when it notices a lost connection.

    After a restart of Redis it sometimes does not notice: kombu's loop then continues without a socket, and never
    receives a message.
    """

    def lose() -> None:
        raise ConnectionError("no hint was heard")

    if consumer is not None and consumer.hub is not None:
        consumer.hub.call_soon(lose)


@signals.worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _count_stop_request(**_: Any) -> None:
    global _stop_requests
    _stop_requests += 1
    manager.tell_stopping()
    log.info("worker_stopping", stop_attempts=shutdown_options.stop_attempts, drain=shutdown_options.drain)


@signals.worker_shutdown.connect  # type: ignore[untyped-decorator]
def _stop_agent(**_: Any) -> None:
    if agent is None:
        return
    if shutdown_options.drain:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _count_signal)  # Celery's own handlers would count nothing from here on
        agent.drain(shutdown_options.drain_seconds, lambda: _stop_requests > 1 and not shutdown_options.in_block)
    agent.stop(stop_attempts=shutdown_options.stop_attempts)


def _count_signal(*_: object) -> None:
    global _stop_requests
    _stop_requests += 1
