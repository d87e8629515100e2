"""The first process of a box: makes its namespaces and mounts, forks the ranks, and reaps. When it ends, the kernel
kills everything in the box.

It is forked by the supervisor (`workers.sandbox.box.box`), mostly ahead of the attempt, and does what that asks, one
request after the other. It runs no user's code, opens no connection, and knows no credential.
"""

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from workers.runtime.launch import AttemptConfig, RankAccount
from workers.runtime.process_control import (
    EXIT_BROKEN,
    ask_for_death_signal,
    close_all_but,
    keep_own_proc_files,
    name_process,
)
from workers.runtime.process_status import cpu_seconds_of_children
from workers.sandbox.box import mounts, wire
from workers.sandbox.box.confinement import confine_process
from workers.sandbox.box.plan import BoxPlan
from workers.sandbox.box.syscalls import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    unshare_namespaces,
)
from workers.sandbox.box.wire import BoxMessage

_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x1 | 0x40
_BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class BoxWork:
    """What the first process of a box does for others. `fork_rank` forks one rank and returns its process id;
    `serve_store` serves the rendezvous store on a listening socket, for as long as what it returns lives."""

    fork_rank: Callable[[AttemptConfig, BoxMessage, BoxPlan], int]
    serve_store: Callable[[socket.socket], object]


def fork_init(line: socket.socket, plan: BoxPlan, work: BoxWork, enter: Callable[[], None]) -> None:
    """Fork the first process of a box, which answers on `line`. It becomes a child of this process, which must be a
    subreaper with one thread. `enter` moves it into its cgroup.

    Raises:
        OSError: this process cannot fork.
    """
    pid = os.fork()
    if pid == 0:
        try:
            enter()
            _make_process_namespace(line, plan, work)
        except OSError as error:
            wire.send_message(line, "failed", message=str(error))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _make_process_namespace(line: socket.socket, plan: BoxPlan, work: BoxWork) -> None:
    """In between: whoever makes a PID namespace is not in it, only what it forks from then on."""
    if plan.level == "user":
        _make_user_namespace()
    unshare_namespaces(CLONE_NEWPID)
    if os.fork() == 0:
        try:
            BoxInit(line, plan, work).serve()
        except EOFError:
            pass  # the supervisor is gone
        except BaseException:  # noqa: BLE001  (the supervisor notices the closed line)
            traceback.print_exc()
        finally:
            os._exit(0)


def _make_user_namespace() -> None:
    """A namespace in which this account has all rights, and itself for its only account."""
    uid, gid = os.geteuid(), os.getegid()
    unshare_namespaces(CLONE_NEWUSER)
    keep_own_proc_files()
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


class BoxInit:
    """Process 1 of a box."""

    def __init__(self, line: socket.socket, plan: BoxPlan, work: BoxWork) -> None:
        self._line = line
        self._plan = plan
        self._work = work
        self._store: object | None = None
        self._files = mounts.BoxFiles(plan)
        self._config: AttemptConfig | None = None
        self._ranks: dict[int, int] = {}  # process id -> number
        self._requests: dict[str, Callable[[BoxMessage], dict[str, Any] | None]] = {
            "begin": self._begin,
            "bind": self._bind,
            "directory": self._make_directory,
            "listen": self._listen,
            "fork": self._fork,
            "serve": self._serve_store,
            "run": self._run,
        }
        self._answer_descriptors: list[int] = []

    def serve(self) -> NoReturn:
        """Make the box, and do what the supervisor asks until it is gone.

        Raises:
            EOFError: it is gone.
        """
        close_all_but({self._line.fileno()})
        os.umask(0o066)  # ranks have to pass the directories that are made here, and no more
        name_process("sy-box")
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            unshare_namespaces(CLONE_NEWNS | CLONE_NEWIPC)
            self._files.build()
        except OSError as error:
            wire.send_message(self._line, "failed", message=str(error))
            raise EOFError from error
        wire.send_message(self._line, "ready")
        ready = select.poll()
        ready.register(self._line, select.POLLIN)
        ready.register(wake, select.POLLIN)
        while True:
            for fd, _ in ready.poll():
                if fd == wake:
                    os.read(wake, 4096)
                    self._reap()
                else:
                    self._answer(wire.receive_message(self._line))

    def _answer(self, message: BoxMessage) -> None:
        try:
            fields = self._requests[message.operation](message) or {}
        except OSError as error:
            wire.send_message(self._line, "failed", message=str(error), number=error.errno or 0)
        else:
            wire.send_message(self._line, "done", self._answer_descriptors, **fields)
        for descriptor in (*message.descriptors, *self._answer_descriptors):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._answer_descriptors = []

    def _reap(self) -> None:
        """Reap whatever has ended, orphans too, and tell how ranks did."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                seconds = cpu_seconds_of_children(ended.si_pid)  # known until it is reaped
                pid, status = os.waitpid(ended.si_pid, 0)
                if pid in self._ranks:
                    exit_code = os.waitstatus_to_exitcode(status)
                    number = self._ranks.pop(pid)
                    wire.send_message(self._line, "exit", rank=number, status=exit_code, children_seconds=seconds)

    # -- requests --------------------------------------------------------------------------------------

    def _begin(self, message: BoxMessage) -> None:
        """Make the box one of an attempt: its sizes, network and devices, and its configuration."""
        fields = message.fields
        self._config = wire.load_object(message.descriptors.pop(0))
        if fields["own_network"]:
            unshare_namespaces(CLONE_NEWNET)
            _raise_loopback()
            self._files.name_loopback()
        if fields["tmp_bytes"]:
            self._files.resize(fields["tmp_bytes"], fields["shm_bytes"], fields["files"])
            _limit_shared_memory(fields["shm_bytes"])
        self._files.add_devices(fields["devices"])
        ask_for_death_signal(signal.SIGKILL)  # its parent is the supervisor by now

    def _bind(self, message: BoxMessage) -> None:
        self._files.bind(**message.fields)

    def _make_directory(self, message: BoxMessage) -> None:
        path = message.fields["path"]
        os.mkdir(path, 0o700)
        os.chown(path, *message.fields["owner"])

    def _listen(self, message: BoxMessage) -> None:
        """A listening socket within the box: on a path, or on a free port of an address."""
        address = message.fields["address"]
        family = socket.AF_UNIX if "/" in address else socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.socket(family)
        listener.bind(address if family == socket.AF_UNIX else (address, 0))
        if family == socket.AF_UNIX:
            os.chown(address, *message.fields["owner"])
            os.chmod(address, 0o600)
        listener.listen(_BACKLOG)
        self._answer_descriptors.append(listener.detach())

    def _fork(self, message: BoxMessage) -> None:
        assert self._config is not None
        pid = self._work.fork_rank(self._config, message, self._plan)
        self._ranks[pid] = message.fields["rank"]
        self._answer_descriptors.append(os.pidfd_open(pid))

    def _serve_store(self, message: BoxMessage) -> None:
        """Serve the ranks' rendezvous. Here, since nobody outside can connect; the ranks have been forked by now."""
        self._store = self._work.serve_store(socket.socket(fileno=message.descriptors.pop()))

    def _run(self, message: BoxMessage) -> None:
        """Run a program in the box, as the account of jobs; its output goes to the descriptor that came along."""
        if os.fork() == 0:
            try:
                account = RankAccount(**message.fields["account"]) if message.fields["account"] else None
                os.dup2(message.descriptors[0], 1)
                confine_process(account, self._plan.syscalls, [1])
                os.chdir(message.fields["directory"])
                command = message.fields["command"]
                os.execve(command[0], command, message.fields["variables"])  # noqa: S606  (no shell; ours)
            except BaseException:  # noqa: BLE001  (the exit code tells)
                traceback.print_exc()
            finally:
                os._exit(EXIT_BROKEN)


def _limit_shared_memory(size: int) -> None:
    """Bound the shared memory of System V, which nothing but a cgroup counts where no process has attached it. Without
    root the kernel may not allow that."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/shmall", "w") as file:
        file.write(str(max(1, size // os.sysconf("SC_PAGE_SIZE"))))


def _raise_loopback() -> None:
    """Set the loopback interface up, the only one of a new network namespace."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", _IFF_UP_RUNNING, b""))
