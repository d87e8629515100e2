"""The warm forkserver: one process that has torch and the training code imported, and forks supervisors.

A supervisor with its ranks is up in tens of milliseconds where a cold start takes seconds. The worker starts the server
and speaks with it over a socket: a launch goes there, the process id of the supervisor comes back. The server waits for
nothing else, and for none of its children: a supervisor outlives server and worker.

The standard library has such a server too. Ours forks once for a start, where that one takes another process in between
and what `multiprocessing` does in it.

Forking is safe only while the server has one thread and no CUDA context: it looks, and refuses.
"""

import contextlib
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NoReturn

import structlog

from jobs import failpoints
from workers.launch import Launch
from workers.ranks import KEPT_VARIABLES

log = structlog.get_logger(__name__)

WARM_SECONDS = 120.0
REPLY_SECONDS = 20.0
DEATH_SECONDS = 5.0
#: How much later than a broken connection the server's death may show.
LATE_SECONDS = 0.5
_LENGTH = struct.Struct("!I")


class ForkFailed(Exception):
    """The forkserver could not start a supervisor; the message says why."""


class ForkServer:
    """One per worker. `warm` before the node registers; `launch` for every attempt."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._lock = threading.Lock()

    def warm(self) -> float:
        """Start the server, or start it again, and wait until it is ready to fork.

        Returns:
            seconds that it took.

        Raises:
            ForkFailed: it is not up after two minutes, or has not imported all that it should.
        """
        began = time.monotonic()
        with self._lock:
            self._warm()
        return time.monotonic() - began

    def replace(self) -> float:
        """Kill the server, whatever is wrong with it, and warm a new one. Returns and raises as `warm`."""
        self._kill()
        return self.warm()

    @property
    def alive(self) -> bool:
        """Whether the server runs that was warmed last."""
        return not self._is_dead(0)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def launch(self, launch: Launch, control_url: str, telemetry_url: str) -> int:
        """Start the supervisor of an attempt.

        Returns:
            its process id.

        Raises:
            ForkFailed: it did not come up.
        """
        reader, writer = os.pipe()
        try:
            secrets = {"control_url": control_url, "telemetry_url": telemetry_url}
            with Connection(writer, readable=False) as pipe:
                pipe.send_bytes(json.dumps(secrets).encode())  # waits in the pipe until the ranks are forked
            with self._lock:
                try:
                    return self._ask(launch, reader)
                except ForkFailed:
                    if not self._is_dead(LATE_SECONDS):
                        raise
                    # Somebody killed it. Should a supervisor have come up all the same, its lock stops the second.
                    self._warm()
                    return self._ask(launch, reader)
        finally:
            os.close(reader)

    def close(self) -> None:
        """End the server; supervisors go on."""
        self._kill()
        if self._line is not None:
            self._line.close()

    def _warm(self) -> None:
        self.close()
        ours, theirs = socket.socketpair()
        # It imports what the worker imports, also where variables that ranks must not see have led to that.
        path = f"import sys; sys.path[:] = {sys.path!r}"
        program = f"{path}; from workers.forkserver import serve; serve({theirs.fileno()})"
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        with theirs, _scrubbed_environment():
            self._process = subprocess.Popen([sys.executable, *flags, "-c", program], pass_fds=[theirs.fileno()])
        self._line = ours
        self._answer(WARM_SECONDS)

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(DEATH_SECONDS)

    def _is_dead(self, wait: float) -> bool:
        if self._process is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(wait)
        return self._process.returncode is not None

    def _ask(self, launch: Launch, credentials: int) -> int:
        if self._line is None:
            raise ForkFailed("the forkserver was never warm")
        try:
            _send(self._line, pickle.dumps(launch), [credentials])
        except OSError as error:
            raise ForkFailed(f"the forkserver died: {error!r}") from error
        return int(self._answer(REPLY_SECONDS))

    def _answer(self, seconds: float) -> str:
        """What the server answers. One that does not is killed: its next answer would be taken for another's.

        Raises:
            ForkFailed: it did not answer in time, died, or says why it cannot.
        """
        assert self._line is not None
        self._line.settimeout(seconds)
        try:
            status, text = json.loads(_receive(self._line)[0])
        except TimeoutError as error:
            self._kill()
            raise ForkFailed(f"the forkserver did not answer within {seconds:g} s") from error
        except (EOFError, OSError, ValueError) as error:
            raise ForkFailed(f"the forkserver died: {error!r}") from error
        if status != "ok":
            raise ForkFailed(text)
        return str(text)


def _send(line: socket.socket, body: bytes, descriptors: list[int]) -> None:
    socket.send_fds(line, [_LENGTH.pack(len(body))], descriptors)
    line.sendall(body)


def _receive(line: socket.socket) -> tuple[bytes, list[int]]:
    """A message with the descriptors that came with it.

    Raises:
        EOFError: the other side is gone.
    """
    head, descriptors, _, _ = socket.recv_fds(line, _LENGTH.size, 1)
    head += _exactly(line, _LENGTH.size - len(head)) if head else b""
    if not head:
        raise EOFError
    return _exactly(line, _LENGTH.unpack(head)[0]), descriptors


def _exactly(line: socket.socket, size: int) -> bytes:
    body = b""
    while len(body) < size:
        part = line.recv(size - len(body))
        if not part:
            raise EOFError
        body += part
    return body


# -- below here everything runs in the server --------------------------------------------------------


def serve(descriptor: int) -> NoReturn:
    """Import everything, say so, and fork a supervisor for every launch that comes, until the worker is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the worker's to obey
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps: nobody asks how a supervisor ended
    line = socket.socket(fileno=descriptor)
    try:
        import workers.preload  # noqa: F401

        _tell(line, *_ready())
        while True:
            body, descriptors = _receive(line)
            _tell(line, *_fork_supervisor(line, pickle.loads(body), descriptors))  # noqa: S301  (the worker's own)
    except (EOFError, ConnectionError):
        pass  # the worker is gone
    except BaseException:  # noqa: BLE001  (the worker is told by the end of the line)
        traceback.print_exc()
    finally:
        os._exit(0)  # what was imported has exit handlers, which nobody needs here


def _tell(line: socket.socket, status: str, text: str) -> None:
    _send(line, json.dumps([status, text]).encode(), [])


def _ready() -> tuple[str, str]:
    missing = {"torch", "torch._dynamo", "workers.supervisor"} - set(sys.modules)
    why_not = f"the forkserver could not import {', '.join(sorted(missing))}" if missing else _unsafe_to_fork()
    return ("failed", why_not) if why_not else ("ok", str(os.getpid()))


def _fork_supervisor(line: socket.socket, launch: Launch, descriptors: list[int]) -> tuple[str, str]:
    why_not = _unsafe_to_fork()
    try:
        if why_not:
            return "failed", why_not
        pid = os.fork()
        if pid == 0:
            try:
                line.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                from workers.supervisor import main

                main(launch, Connection(descriptors.pop(), writable=False))
            finally:
                os._exit(1)
        return "ok", str(pid)
    except OSError as error:
        return "failed", f"the forkserver cannot fork: {error}"
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _unsafe_to_fork() -> str:
    """Why children forked from this process could hang; "" when nothing speaks against it."""
    import torch

    threads = len(os.listdir("/proc/self/task"))
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
