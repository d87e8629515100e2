"""The supervisor's handles on its ranks: forks them, sends them commands, and takes their exit statuses."""

import contextlib
import fcntl
import os
import select
import signal
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from jobs.files.log_file import StreamName
from jobs.protocol.records import Outcome, PacketDecoder, Returned
from workers.rank.process import EXIT_BROKEN, RankPipes, SharedFiles, run_rank
from workers.runtime import commands, profile_request
from workers.runtime.launch import AttemptConfig, AttemptDirectory, StartMessage
from workers.sandbox import cgroup


@dataclass(slots=True)
class OutputPipe:
    """One pipe that carries what a device's log gets."""

    fd: int
    device: int
    stream: StreamName


@dataclass(slots=True)
class RankHandle:
    """The supervisor's handle on a rank."""

    number: int
    pid: int
    pidfd: int
    channel: int  # records come from here
    command: int  # commands go in here
    start_message: int  # a file in memory that all ranks share, written once the attempt is claimed
    profile_request: int  # memory in which all ranks are asked for a profile
    outputs: list[OutputPipe]
    decoder: PacketDecoder = field(default_factory=PacketDecoder)
    up: bool = False
    returned: Returned | None = None  # its program has ended, and this is what is left to do
    returned_at: float = 0.0  # monotonic
    outcome: Outcome | None = None
    status: int | None = None  # exit code, or minus the signal
    stderr_tail: bytes = b""  # the end of what it wrote to stderr
    printed_at: float = 0.0  # monotonic: when it last printed anything

    @property
    def is_alive(self) -> bool:
        return self.status is None

    def start_program(self, start_message: StartMessage) -> None:
        """Let the rank run its program. Never blocks: a pipe might, with long paths and a rank that does not read."""
        os.pwrite(self.start_message, start_message.encode(), 0)
        self.send_command(commands.GO)

    def allow_exit(self) -> None:
        self.send_command(commands.LEAVE)

    def send_command(self, command: bytes) -> None:
        """Never blocks: a rank that reads nothing has a full pipe, and misses commands."""
        with contextlib.suppress(BrokenPipeError, BlockingIOError):  # it is dead, which its pidfd will tell
            os.write(self.command, command)

    def kill(self, number: int) -> None:
        if self.is_alive:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def reap(self) -> bool:
        """Take the exit status if it is there; True when the rank is dead."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status is not None


def fork_ranks(config: AttemptConfig, rendezvous_port: int | None) -> list[RankHandle]:
    """Fork all ranks. They wait, and use no device and run no user's code, until the start message.

    Must be called from the supervisor's main thread: the parent-death signal is bound to the thread
    that forks.
    """
    attempt_directory = AttemptDirectory.of(config.state_dir, config.attempt)
    supervisor = os.getpid()
    # Inherited by the ranks and by all that they fork; this process closes it below.
    lock = os.open(attempt_directory.ranks_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    group = cgroup.create_cgroup(attempt_directory.cgroup, attempt_directory.directory.name)
    start_message, request = os.memfd_create("start_message"), profile_request.create_request()
    plumbing = [_open_pipes(config, number) for number in range(config.world_size)]
    ranks = []
    for number, pipes in enumerate(plumbing):
        pid = os.fork()
        if pid == 0:
            try:
                if group is not None:
                    cgroup.enter_cgroup(group)
                run_rank(config, number, pipes, SharedFiles(lock, start_message, request), supervisor, rendezvous_port)
            except BaseException:  # noqa: BLE001  (nothing may escape into the supervisor's stack)
                traceback.print_exc()
            finally:
                os._exit(EXIT_BROKEN)
        outputs = [OutputPipe(fd, device, stream) for (device, stream), (fd, _) in pipes.outputs.items()]
        ends = pipes.channel[0], pipes.command[1]
        ranks.append(RankHandle(number, pid, os.pidfd_open(pid), *ends, start_message, request, outputs))
    for pipes in plumbing:
        os.close(pipes.command[0])
        for _, write_end in (pipes.channel, *pipes.outputs.values()):
            os.close(write_end)
    os.close(lock)
    for rank in ranks:
        for fd in (rank.channel, rank.command, *(output.fd for output in rank.outputs)):
            os.set_blocking(fd, False)
    return ranks


def has_working_children(pid: int) -> bool:
    """Whether a process has living children, but for the helper with which multiprocessing cleans up after it."""
    pids: list[str] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += children.read_text().split()
    return any(_is_working(child) for child in pids)


def _is_working(pid: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return bool(command) and b"multiprocessing.resource_tracker" not in command  # a zombie has no command


def await_death(ranks: list[RankHandle], seconds: float) -> None:
    """Wait until one of these ranks is dead, for at most `seconds`."""
    deaths = select.poll()
    for rank in ranks:
        deaths.register(rank.pidfd, select.POLLIN)
    if ranks:
        deaths.poll(seconds * 1000)


def _open_pipes(config: AttemptConfig, number: int) -> RankPipes:
    return RankPipes(
        channel=os.pipe(),
        command=os.pipe(),
        outputs={
            (device, stream): os.pipe() for device, _ in config.devices_of(number) for stream in ("stdout", "stderr")
        },
    )
