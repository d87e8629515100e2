"""Makes a forked process the supervisor of one attempt: own session, own log, own lock, and then its credentials."""

import fcntl
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import structlog

from jobs.support.logging_config import configure_logging
from workers.carrier.access import RemoteAccess
from workers.runtime.launch import AttemptConfig, AttemptDirectory
from workers.runtime.process_control import adopt_orphans, close_all_but, name_process
from workers.runtime.process_status import read_start_time
from workers.supervisor.stop_signal import heed_stop_signal

CREDENTIALS_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class SupervisorCredentials:
    """The addresses and passwords of both Redis servers, and the way to a storage that is not mounted, which no rank
    may know; and the values of the job's secrets by the variables that get them."""

    control_url: str
    telemetry_url: str
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    storage: RemoteAccess = field(default_factory=RemoteAccess)


def start_session(kept_fd: int) -> None:
    """Do what needs no attempt: start a session, adopt orphans, close all descriptors but `kept_fd` and 0 to 2."""
    os.setsid()
    adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # its commands come through Redis; a stray Ctrl-C ends nothing
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the server lets the kernel reap, this process has to know
    close_all_but({kept_fd})
    configure_logging("INFO", libraries="WARNING")  # which is what ranks begin with


def own_attempt(config: AttemptConfig) -> AttemptDirectory:
    """Open the attempt's log, and take its lock.

    Raises:
        BlockingIOError: another supervisor has the lock.
    """
    name_process("sy-supervisor")
    if config.temporary:
        heed_stop_signal()
    directory = AttemptDirectory.of(config.state_dir, config.attempt)
    directory.create()
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(directory.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os.close(null)
    os.close(output)
    structlog.contextvars.bind_contextvars(attempt=str(config.attempt))
    lock = os.open(directory.supervisor_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held by this process alone, until it dies
    directory.session.write_text(f"{os.getpid()} {read_start_time(os.getpid())}")
    return directory


def read_credentials(pipe: Connection) -> SupervisorCredentials:
    """Read the credentials that the worker has left, and close their descriptor.

    Raises:
        EOFError: the worker died before it wrote them.
    """
    if not pipe.poll(CREDENTIALS_SECONDS):
        raise EOFError("no credentials arrived")
    found = json.loads(pipe.recv_bytes())
    credentials = SupervisorCredentials(**found | {"storage": RemoteAccess(**found.get("storage", {}))})
    pipe.close()
    return credentials
