"""The warm forkserver: one process that has torch and the training code imported, and forks supervisors.

A supervisor with its ranks is up in tens of milliseconds where a cold start takes seconds. The worker starts the server
and speaks with it over a socket: a launch goes there, the process id of the supervisor comes back. The server waits for
nothing else, and for none of its children: a supervisor outlives server and worker.

The standard library has such a server too, which takes a process in between with what `multiprocessing` does there.
Ours has one process waiting, forked ahead, that becomes the next supervisor; until then it knows no credentials and no
attempt. The server never does: its memory is that of all later ranks, which may be other tenants'. So it passes on
descriptors of what only supervisors read.

Forking is safe only while the server has one thread and no CUDA context: it looks, and refuses.
"""

import contextlib
import gc
import json
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

import structlog

from jobs.support import failpoints
from workers.rank.process import INHERITED_VARIABLES
from workers.runtime.launch import AttemptConfig
from workers.runtime.process_control import name_process
from workers.sandbox.box.plan import BoxPlan

if TYPE_CHECKING:
    from workers.carrier.access import RemoteAccess
    from workers.sandbox.box.box import Box, BoxFailed

log = structlog.get_logger(__name__)

WARM_SECONDS = 120.0
REPLY_SECONDS = 20.0
DEATH_SECONDS = 5.0
#: How much later than a broken connection the server's death may show.
DEATH_DELAY_SECONDS = 0.5
#: After a start, before the next supervisor is forked ahead: the ranks have the cores first.
SPARE_DELAY_SECONDS = 0.2
#: Of a launch: the attempt's configuration, and credentials.
MAX_DESCRIPTORS = 2
_LENGTH = struct.Struct("!I")


class ForkFailed(Exception):
    """The forkserver could not start a supervisor; the message says why."""


class ForkServer:
    """One per worker. `warm` before the node registers; `config` for every attempt."""

    def __init__(self, plan: BoxPlan | None = None) -> None:
        """`plan`: of the box around every attempt; None: they get none."""
        self._plan = plan
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def start_warm(self) -> float:
        """Start the server, or start it again, and wait until it is ready to fork.

        Returns:
            seconds that it took.

        Raises:
            ForkFailed: it is not up after two minutes, or has not imported all that it should.
        """
        began = time.monotonic()
        with self._lock:
            self._start_warm()
        return time.monotonic() - began

    def restart_warm(self) -> float:
        """Kill the server, whatever is wrong with it, and warm a new one. Returns and raises as `warm`."""
        self._kill_server()
        return self.start_warm()

    @property
    def is_alive(self) -> bool:
        """Whether the server runs that was warmed last."""
        return not self._is_dead(0)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start_supervisor(
        self,
        config: AttemptConfig,
        control_url: str,
        telemetry_url: str,
        secrets: Mapping[str, str] | None = None,
        storage: "RemoteAccess | None" = None,
    ) -> int:
        """Start the supervisor of an attempt. `secrets` are the values that its ranks get as environment variables,
        `storage` is how it reaches one that is not mounted.

        Returns:
            its process id.

        Raises:
            ForkFailed: it did not come up.
        """
        credentials: dict[str, Any] = {"control_url": control_url, "telemetry_url": telemetry_url}
        credentials["secrets"] = dict(secrets or {})
        if storage is not None:
            credentials["storage"] = asdict(storage)
        reader = _leave_message(json.dumps(credentials).encode())  # read once the ranks are forked
        try:
            with self._lock:
                if self._is_dead(0):  # the line may not tell: a supervisor that was stopped at its birth has it too
                    self._start_warm()
                try:
                    return self._request_supervisor(config, reader)
                except ForkFailed:
                    if not self._is_dead(DEATH_DELAY_SECONDS):
                        raise
                    # Somebody killed it. Should a supervisor have come up all the same, its lock stops the second.
                    self._start_warm()
                    return self._request_supervisor(config, reader)
        finally:
            os.close(reader)

    def close(self) -> None:
        """End the server; supervisors continue."""
        self._kill_server()
        if self._socket is not None:
            self._socket.close()

    def _start_warm(self) -> None:
        self.close()
        ours, theirs = socket.socketpair()
        # It imports what the worker imports, also where variables that ranks must not see have led to that.
        path = f"import sys; sys.path[:] = {sys.path!r}"
        program = f"{path}; from workers.node.forkserver import serve; serve({theirs.fileno()})"
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        with theirs, _scrubbed_environment():
            self._process = subprocess.Popen([sys.executable, *flags, "-c", program], pass_fds=[theirs.fileno()])
        self._socket = ours
        _send_message(ours, pickle.dumps(self._plan), [])
        self._read_reply(WARM_SECONDS)

    def _kill_server(self) -> None:
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

    def _request_supervisor(self, config: AttemptConfig, credentials: int) -> int:
        if self._socket is None:
            raise ForkFailed("the forkserver was never warm")
        launch = _leave_message(pickle.dumps(config))
        try:
            _send_message(self._socket, b"", [launch, credentials])
        except OSError as error:
            raise ForkFailed(f"the forkserver died: {error!r}") from error
        finally:
            os.close(launch)
        return int(self._read_reply(REPLY_SECONDS))

    def _read_reply(self, seconds: float) -> str:
        """What the server answers. One that does not is killed: its next answer would be taken for another's.

        Raises:
            ForkFailed: it did not answer in time, died, or says why it cannot.
        """
        assert self._socket is not None
        self._socket.settimeout(seconds)
        try:
            status, text = json.loads(_receive_message(self._socket)[0])
        except TimeoutError as error:
            self._kill_server()
            raise ForkFailed(f"the forkserver did not answer within {seconds:g} s") from error
        except (EOFError, OSError, ValueError) as error:
            raise ForkFailed(f"the forkserver died: {error!r}") from error
        if status != "ok":
            raise ForkFailed(text)
        return str(text)


def _leave_message(body: bytes) -> int:
    """A descriptor that another process reads a message from, whenever it likes. In memory: a pipe holds 64 KiB, and
    nothing of this may be on a disk."""
    descriptor = os.memfd_create("launch")
    with Connection(os.dup(descriptor), readable=False) as writer:
        writer.send_bytes(body)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _send_message(line: socket.socket, body: bytes, descriptors: list[int]) -> None:
    socket.send_fds(line, [_LENGTH.pack(len(body))], descriptors)
    line.sendall(body)


def _receive_message(line: socket.socket) -> tuple[bytes, list[int]]:
    """A message with the descriptors that came with it.

    Raises:
        EOFError: the other side is gone.
    """
    head, descriptors, _, _ = socket.recv_fds(line, _LENGTH.size, MAX_DESCRIPTORS)
    head += _receive_exactly(line, _LENGTH.size - len(head)) if head else b""
    if not head:
        raise EOFError
    return _receive_exactly(line, _LENGTH.unpack(head)[0]), descriptors


def _receive_exactly(line: socket.socket, size: int) -> bytes:
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
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # of a terminal, or of an engine that means all of a node's processes
        signal.signal(number, signal.SIG_IGN)  # the worker's to obey
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps: no process waits for a supervisor
    line = socket.socket(fileno=descriptor)
    try:
        gc.disable()  # nearly all that the imports make stays: collections would go through it again and again
        import workers.node.preload  # noqa: F401

        gc.enable()
        plan: BoxPlan | None = pickle.loads(_receive_message(line)[0])  # noqa: S301  (the worker's own)
        _send_reply(line, *_check_ready())
        _serve_launches(line, plan)
    except (EOFError, ConnectionError):
        pass  # the worker is gone
    except BaseException:  # noqa: BLE001  (the worker notices the closed socket)
        traceback.print_exc()
    finally:
        os._exit(0)  # skip the exit handlers of imported modules


def _serve_launches(line: socket.socket, plan: BoxPlan | None) -> None:
    """Answer launches. In between, fork a process ahead, which becomes the next supervisor; it ends with the server."""
    spare: tuple[int, socket.socket] | None = None
    while True:
        if spare is None and not _is_readable(line, SPARE_DELAY_SECONDS):
            spare = _fork_spare(plan)
            continue
        _, descriptors = _receive_message(line)
        pid = _hand_over(spare, descriptors) if spare is not None else 0
        _send_reply(line, *(("ok", str(pid)) if pid else _fork_supervisor(descriptors, plan)))
        spare = None
        for descriptor in descriptors:
            os.close(descriptor)


def _is_readable(line: socket.socket, seconds: float) -> bool:
    return bool(select.select([line], [], [], seconds)[0])


def _send_reply(line: socket.socket, status: str, text: str) -> None:
    _send_message(line, json.dumps([status, text]).encode(), [])


def _check_ready() -> tuple[str, str]:
    missing = {"torch", "torch._dynamo", "workers.supervisor.main"} - set(sys.modules)
    why_not = f"the forkserver could not import {', '.join(sorted(missing))}" if missing else _why_unsafe_to_fork()
    return ("failed", why_not) if why_not else ("ok", str(os.getpid()))


def _fork_spare(plan: BoxPlan | None) -> tuple[int, socket.socket] | None:
    """A process that waits to be a supervisor, with its box, and the line to it; None where there can be none."""
    from workers.supervisor.process_setup import start_session

    if _why_unsafe_to_fork():
        return None
    ours, theirs = socket.socketpair()
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if pid == 0:
        try:
            name_process("sy-spare")
            start_session(theirs.fileno())
            box = _make_box(plan)
            try:
                _, descriptors = _receive_message(theirs)
            except EOFError:  # the server is gone
                _discard_box(box)
            else:
                theirs.close()
                _run_supervisor(_read_config(descriptors[0]), descriptors[1], box)
        except BaseException:  # noqa: BLE001  (the next launch does without it)
            traceback.print_exc()
        finally:
            os._exit(0)
    theirs.close()
    if pid < 0:
        ours.close()
        return None
    return pid, ours


def _hand_over(spare: tuple[int, socket.socket], descriptors: list[int]) -> int:
    """Have the spare process run a launch; its process id, or 0 where it is dead."""
    pid, line = spare
    with line:
        try:
            _send_message(line, b"", descriptors)
        except OSError:
            return 0
    return pid


def _fork_supervisor(descriptors: list[int], plan: BoxPlan | None) -> tuple[str, str]:
    from workers.supervisor.process_setup import start_session

    if why_not := _why_unsafe_to_fork():
        return "failed", why_not
    try:
        pid = os.fork()
    except OSError as error:
        return "failed", f"the forkserver cannot fork: {error}"
    if pid == 0:
        try:
            config = _read_config(descriptors[0])
            start_session(descriptors[1])
            _run_supervisor(config, descriptors[1], _make_box(plan))
        finally:
            os._exit(1)
    return "ok", str(pid)


def _read_config(descriptor: int) -> AttemptConfig:
    """Of the attempt that this process is to supervise; the descriptor is closed."""
    with Connection(descriptor, writable=False) as message:
        config: AttemptConfig = pickle.loads(message.recv_bytes())  # noqa: S301  (the worker's own)
    return config


def _run_supervisor(config: AttemptConfig, credentials: int, box: "Box | BoxFailed | None") -> None:
    from workers.supervisor.main import main

    main(config, Connection(credentials, writable=False), box)


def _make_box(plan: BoxPlan | None) -> "Box | BoxFailed | None":
    """The box of the next attempt; why there is none, which the attempt then fails to start of."""
    from workers.rank.handle import fork_rank_in_box
    from workers.sandbox.box.box import Box, BoxFailed
    from workers.sandbox.box.init import BoxWork
    from workers.supervisor.rendezvous import serve_store

    if plan is None:
        return None
    try:
        return Box.make(plan, BoxWork(fork_rank_in_box, serve_store))
    except BoxFailed as error:
        return error


def _discard_box(box: "Box | BoxFailed | None") -> None:
    from workers.sandbox.box.box import Box

    if isinstance(box, Box):
        box.destroy()
        box.release()


def _why_unsafe_to_fork() -> str:
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
    kept = {name: before[name] for name in INHERITED_VARIABLES if name in before}
    kept |= failpoints.inherited_variable(before)
    os.environ.clear()
    # OpenBLAS starts its threads at import, and the server must have one thread.
    os.environ.update(kept, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
