"""The warm forkserver, and the way from it to a supervisor.

The standard library's forkserver has torch and the training code imported, so a supervisor with its
ranks is up in tens of milliseconds where a cold start takes seconds. The worker asks it for a *stub*,
a multiprocessing child; the stub forks the supervisor, reports its process id and ends. So no
multiprocessing parent ever waits for a supervisor, and it outlives the worker.

Forking is safe only while the server has one thread and no CUDA context: the stub looks, and refuses.
"""

import contextlib
import json
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess

import structlog

from jobs import failpoints
from workers.launch import Launch
from workers.ranks import KEPT_VARIABLES

log = structlog.get_logger(__name__)

WARM_SECONDS = 120.0
REPLY_SECONDS = 20.0
STUB_SECONDS = 5.0
#: How much later than a broken connection the server's death may show.
DEATH_SECONDS = 0.5


class ForkFailed(Exception):
    """The forkserver could not start a supervisor; the message says why."""


class ForkServer:
    """One per worker. `warm` before the node registers; `launch` for every attempt."""

    def __init__(self) -> None:
        self._server: int | None = None  # pidfd
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["workers.preload"])
        self._lock = threading.Lock()

    def warm(self) -> float:
        """Start the server, or start it again, and wait until it has forked a first child.

        Returns:
            seconds that it took.

        Raises:
            ForkFailed: it is not up after two minutes, or its child did not find torch imported.
        """
        began = time.monotonic()
        with self._lock, _scrubbed_environment():
            self._warm()
        return time.monotonic() - began

    def replace(self) -> float:
        """Kill the server, whatever is wrong with it, and warm a new one. Returns and raises as `warm`."""
        if self._server is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._server, signal.SIGKILL)
            self._is_dead(STUB_SECONDS)
        return self.warm()

    @property
    def alive(self) -> bool:
        """Whether the server runs that was warmed last."""
        return not self._is_dead(0)

    def _is_dead(self, wait: float) -> bool:
        return self._server is None or bool(select.select([self._server], [], [], wait)[0])

    def launch(self, launch: Launch, control_url: str, telemetry_url: str) -> int:
        """Start the supervisor of an attempt.

        Returns:
            its process id.

        Raises:
            ForkFailed: it did not come up.
        """
        reader, writer = multiprocessing.Pipe(duplex=False)
        with reader, writer:
            secrets = {"control_url": control_url, "telemetry_url": telemetry_url}
            writer.send_bytes(json.dumps(secrets).encode())  # waits in the pipe until the ranks are forked
            with self._lock:
                try:
                    return int(self._run(_fork_supervisor, REPLY_SECONDS, launch, reader))
                except ForkFailed:
                    if not self._is_dead(DEATH_SECONDS):
                        raise
                    # Somebody killed it. Should a supervisor have come up all the same, its lock stops the second.
                    with _scrubbed_environment():
                        self._warm()
                    return int(self._run(_fork_supervisor, REPLY_SECONDS, launch, reader))

    def _warm(self) -> None:
        pid = int(self._run(_report_server, WARM_SECONDS))
        if self._server is not None:
            os.close(self._server)
        self._server = os.pidfd_open(pid)

    def _run(self, stub: object, seconds: float, *args: object) -> str:
        """Run `stub(reply, *args)` in a child of the server and return what it replies."""
        reply, answer = multiprocessing.Pipe(duplex=False)
        process: ForkServerProcess = self._context.Process(target=stub, args=(answer, *args), daemon=False)  # type: ignore[arg-type]
        with reply:
            try:
                with answer:
                    process.start()
                if not reply.poll(seconds):
                    process.kill()
                    raise ForkFailed(f"the forkserver did not answer within {seconds:g} s")
                status, text = json.loads(reply.recv_bytes())
            except (EOFError, OSError, ValueError) as error:
                raise ForkFailed(f"the forkserver's child died: {error!r}") from error
            finally:
                if process.pid is not None:
                    process.join(STUB_SECONDS)
        if status != "ok":
            raise ForkFailed(text)
        return str(text)


# -- below here everything runs in a child of the forkserver -----------------------------------------


def _report_server(answer: Connection) -> None:
    """Reply with the server's process id, if it is fit to fork supervisors."""
    import sys

    missing = {"torch", "torch._dynamo", "workers.supervisor"} - set(sys.modules)
    why_not = f"the forkserver could not import {', '.join(sorted(missing))}" if missing else _unsafe_to_fork()
    answer.send_bytes(json.dumps(["failed", why_not] if why_not else ["ok", str(os.getppid())]).encode())


def _fork_supervisor(answer: Connection, launch: Launch, credentials: Connection) -> None:
    why_not = _unsafe_to_fork()
    if why_not:
        answer.send_bytes(json.dumps(["failed", why_not]).encode())
        return
    pid = os.fork()
    if pid == 0:
        from workers.supervisor import main

        main(launch, credentials)
    answer.send_bytes(json.dumps(["ok", str(pid)]).encode())


def _unsafe_to_fork() -> str:
    """Why children forked from the server could hang; "" when nothing speaks against it."""
    import torch

    threads = len(os.listdir(f"/proc/{os.getppid()}/task"))
    if threads != 1:
        return f"the forkserver has {threads} threads; restart the worker"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "the forkserver has initialised CUDA; restart the worker"
    return ""


@contextmanager
def _scrubbed_environment() -> Iterator[None]:
    """Only what ranks may see, while the server may be started: it keeps the environment it starts with."""
    before = dict(os.environ)
    kept = {name: before[name] for name in KEPT_VARIABLES if name in before} | failpoints.kept(before)
    os.environ.clear()
    # OpenBLAS starts its threads at import, and the server must have one thread.
    os.environ.update(kept, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
