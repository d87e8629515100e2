"""The box around an attempt, as its supervisor has it: namespaces, an account and a cgroup, made ahead of the attempt
where that can be.

    Box.make      namespaces, private file system, account and cgroup: no attempt is known yet
    Box.begin     sizes, limits, network and devices of an attempt
    fork_rank     a rank in the box; `listen`, `make_directory` and `bind` make what it will find there
    destroy       kills the first process, with which everything in the box dies

The first process (`workers.sandbox.box.init`) does what has to be done inside. It reaps the ranks, and tells how they
ended.
"""

import contextlib
import os
import select
import signal
import socket
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from workers.runtime.launch import AttemptConfig, AttemptDirectory, RankAccount
from workers.runtime.process_status import read_start_time
from workers.sandbox import cgroup
from workers.sandbox.box import accounts, init, wire
from workers.sandbox.box.accounts import TakenAccount
from workers.sandbox.box.gpu_files import files_of_devices
from workers.sandbox.box.init import BoxWork
from workers.sandbox.box.plan import BoxPlan
from workers.sandbox.cgroup import JobCgroup

#: Everything that a box is asked takes milliseconds.
REQUEST_SECONDS = 30.0
DEATH_SECONDS = 5.0
#: The one address of a box with a network of its own.
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RankExit:
    """How a rank ended: `status` is its exit code, or minus the signal; `children_seconds` the processor time of the
    processes that it had waited for."""

    status: int
    children_seconds: float = 0.0


class BoxFailed(OSError):
    """The box could not be made, or did not do what was asked; nothing of the attempt may run without it."""


@dataclass(slots=True)
class Box:
    """A box, and what is held for it outside."""

    line: socket.socket
    plan: BoxPlan
    account: TakenAccount | None
    group: JobCgroup | None
    pid: int  # of its first process, as this process sees it
    pidfd: int
    exits: dict[int, RankExit] = field(default_factory=dict)
    has_own_network: bool = False
    _rank_account: RankAccount | None = None

    @classmethod
    def make(cls, plan: BoxPlan, work: BoxWork) -> "Box":
        """Make a box that no attempt has yet. The caller is a subreaper with one thread.

        Raises:
            BoxFailed: the kernel does not allow it, or no account is free.
        """
        with contextlib.ExitStack() as held:
            account = None
            if plan.accounts is not None:
                try:
                    account = accounts.take_account(*plan.accounts, plan.groups, plan.processes)
                except OSError as error:
                    raise BoxFailed(f"no account for the box: {error}") from error
                held.callback(account.give_back)
            group = cgroup.create_box_cgroup()
            if group is not None:
                held.callback(group.remove)
            line, theirs = wire.open_line()
            held.enter_context(line)
            line.settimeout(REQUEST_SECONDS)
            pid = _fork_first_process(line, theirs, plan, work, group)
            box = cls(line, plan, account, group, pid, os.pidfd_open(pid))
            held.pop_all()
            return box

    def begin(self, config: AttemptConfig) -> AttemptConfig:
        """Make it the box of an attempt. Returns the configuration with the account and address that its ranks have.

        Raises:
            BoxFailed: it cannot be.
        """
        self.has_own_network = config.network == "none"
        if self.account is not None:
            config = replace(config, account=self.account.account)
        config = replace(config, boxed=True)
        self._rank_account = config.account
        if self.has_own_network:
            config = replace(config, address=LOOPBACK)
        directory = AttemptDirectory.of(config.state_dir, config.attempt)
        directory.box.write_text(f"{self.pid} {read_start_time(self.pid)} {_uid_of(self.account)}")
        limits = config.limits
        if self.group is not None:
            self.group.write_record(directory.cgroup)
            if limits is not None:
                self.group.set_limits(limits, len(config.devices))
        self._ask(
            "begin",
            [wire.store_object(config)],
            own_network=self.has_own_network,
            tmp_bytes=limits.tmp_bytes if limits is not None else 0,
            shm_bytes=limits.shm_bytes if limits is not None else 0,
            files=limits.files if limits is not None else 0,
            devices=files_of_devices(config.devices),
        )
        return config

    def fork_rank(self, number: int, port: int | None, descriptors: list[int]) -> tuple[int, int]:
        """Fork a rank, which gets copies of `descriptors`.

        Returns:
            its process id, and a descriptor of the process.

        Raises:
            BoxFailed: it cannot be forked.
        """
        pidfd = self._ask("fork", descriptors, rank=number, port=port).descriptors[0]
        return _pid_of(pidfd), pidfd

    def begin_trial(self) -> None:
        """Make it a box of no attempt, in which a program can be tried.

        Raises:
            BoxFailed: it cannot be.
        """
        self.has_own_network = True
        self._ask("begin", [wire.store_object(None)], own_network=True, tmp_bytes=0, shm_bytes=0, files=0, devices=[])

    def run_program(self, command: list[str], directory: Path, account: RankAccount | None, output: int) -> None:
        """Run a program, whose output goes to a descriptor; it ends with the box.

        Raises:
            BoxFailed: it cannot be started.
        """
        who = asdict(account) if account is not None else None
        variables = {"PATH": os.defpath}
        self._ask("run", [output], command=command, directory=str(directory), account=who, variables=variables)

    def bind(self, path: Path, *, writable: bool) -> None:
        """Show a directory of the service in the box, at its own path.

        Raises:
            BoxFailed: it cannot be shown.
        """
        self._ask("bind", source=os.path.realpath(path), target=str(path), writable=writable)

    def make_directory(self, path: str) -> None:
        """Make a directory that exists in the box only, and belongs to its account.

        Raises:
            BoxFailed: it cannot be made.
        """
        self._ask("directory", path=path, owner=self._owner())

    def listen(self, address: str) -> socket.socket:
        """A listening socket within the box: on a path, or on a free port of an address.

        Raises:
            BoxFailed: the address cannot be had.
        """
        return socket.socket(fileno=self._ask("listen", address=address, owner=self._owner()).descriptors[0])

    def serve_store(self, listener: socket.socket) -> None:
        """Have the ranks' rendezvous served in the box, once they are forked; the socket is closed here.

        Raises:
            BoxFailed: it cannot be served.
        """
        with listener:
            self._ask("serve", [listener.fileno()])

    def read_exits(self) -> dict[int, RankExit]:
        """How the ranks ended that have. Never waits."""
        readable = select.poll()
        readable.register(self.line, select.POLLIN)
        while readable.poll(0):
            try:
                self._note_exit(wire.receive_message(self.line))
            except (EOFError, OSError):
                break
        return self.exits

    @property
    def is_dead(self) -> bool:
        """Whether its first process is dead, and so everything in it."""
        return _has_ended(self.pidfd)

    def destroy(self) -> None:
        """Kill everything in the box. What does not die is found by the sweep."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        _has_ended(self.pidfd, within=DEATH_SECONDS)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)

    def release(self) -> None:
        """Give back what is held outside for a box that is dead."""
        if self.group is not None:
            self.group.remove()
        if self.account is not None:
            accounts.kill_account(self.account.account.uid)
            self.account.give_back()

    def _ask(self, operation: str, descriptors: list[int] | None = None, **fields: Any) -> wire.BoxMessage:
        try:
            wire.send_message(self.line, operation, descriptors, **fields)
            while (answer := wire.receive_message(self.line)).operation == "exit":
                self._note_exit(answer)
        except (OSError, EOFError) as error:
            raise BoxFailed(f"the box did not answer to {operation}: {error!r}") from error
        if answer.operation != "done":
            raise BoxFailed(answer.fields.get("number", 0), f"{operation}: {answer.fields.get('message')}")
        return answer

    def _note_exit(self, message: wire.BoxMessage) -> None:
        if message.operation == "exit":
            fields = message.fields
            self.exits[fields["rank"]] = RankExit(fields["status"], fields["children_seconds"])

    def _owner(self) -> tuple[int, int]:
        """User and group of what is made in the box; -1: those of the first process."""
        return (self._rank_account.uid, self._rank_account.gid) if self._rank_account is not None else (-1, -1)


def _fork_first_process(
    line: socket.socket, theirs: socket.socket, plan: BoxPlan, work: BoxWork, group: JobCgroup | None
) -> int:
    """Its process id, once it has made what the box consists of.

    Raises:
        BoxFailed: it cannot make it.
    """
    try:
        with theirs:
            init.fork_init(theirs, plan, work, group.enter if group is not None else lambda: None)
        ready = wire.receive_message(line)
    except (OSError, EOFError) as error:
        raise BoxFailed(f"the box could not be made: {error!r}") from error
    if ready.operation != "ready":
        with contextlib.suppress(ChildProcessError):
            os.waitpid(ready.sender, 0)  # it ends by itself, and is a child of ours by now
        raise BoxFailed(f"the box could not be made: {ready.fields.get('message')}")
    return ready.sender


def _has_ended(pidfd: int, within: float = 0.0) -> bool:
    """Whether a process has ended, or does within some seconds."""
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    return bool(ended.poll(within * 1000))


def _uid_of(account: TakenAccount | None) -> int:
    return account.account.uid if account is not None else -1


def _pid_of(pidfd: int) -> int:
    """The process id behind a descriptor, as this process sees it."""
    lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))
