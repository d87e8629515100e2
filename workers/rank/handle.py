"""The supervisor's handles on its ranks: forks them, sends them commands, and takes their exit statuses."""

import contextlib
import fcntl
import os
import select
import signal
import traceback
from dataclasses import astuple, dataclass, field
from pathlib import Path

from jobs.files.log_file import StreamName
from jobs.protocol.packets import PacketDecoder
from jobs.protocol.records import Outcome, Returned
from workers.rank.process import STREAMS, Confinement, RankPipes, SharedFiles, run_rank
from workers.runtime import commands, profile_request
from workers.runtime.launch import AttemptConfig, AttemptDirectory, StartMessage
from workers.runtime.process_control import EXIT_BROKEN
from workers.runtime.process_status import cpu_seconds_of_children, is_dying, is_stopped
from workers.sandbox import cgroup
from workers.sandbox.box.box import Box, RankExit
from workers.sandbox.box.plan import BoxPlan
from workers.sandbox.box.wire import BoxMessage
from workers.sandbox.cgroup import JobCgroup


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
    box: Box | None = None  # in which it was forked, and which reaps it
    children_seconds: float = 0.0  # processor time of the processes that it had waited for when it died
    node: str = ""  # where it runs, if the attempt has several
    out_of_memory: bool | None = (
        None  # whether the kernel has killed for want of memory there, as a remote rank is told
    )

    @property
    def name(self) -> str:
        """The rank in the words of a message."""
        return f"rank {self.number} on node {self.node}" if self.node else f"rank {self.number}"

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

    def show_profile(self, number: int, steps: int) -> None:
        """Ask all ranks of its node for a profile; number 0: for none any more."""
        profile_request.show_request(self.profile_request, number, steps)

    def hold_saves(self, is_held: bool) -> None:
        """Have all ranks of its node wait with the next checkpoint that they save by themselves, or not any more."""
        with contextlib.suppress(OSError):
            profile_request.hold_saves(self.profile_request, is_held)

    def request_calls(self, number: int) -> None:
        """Ask all ranks of its node for the collectives that they have called."""
        with contextlib.suppress(OSError):
            profile_request.request_calls(self.profile_request, number)

    @property
    def is_dying(self) -> bool:
        """Whether the kernel is ending it, which its pidfd does not say yet."""
        return is_dying(self.pid)

    @property
    def is_stopped(self) -> bool:
        return is_stopped(self.pid)

    @property
    def has_working_children(self) -> bool:
        """Whether it has living children, but for the helper with which multiprocessing cleans up after it."""
        pids: list[str] = []
        for children in Path(f"/proc/{self.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                pids += children.read_text().split()
        return any(_is_working(child) for child in pids)

    def reap(self) -> bool:
        """Take the exit status if it is there; True when the rank is dead."""
        if self.status is None:
            self.status = self._read_status() if self.box is None else self._read_status_in(self.box)
        return self.status is not None

    def _read_status(self) -> int | None:
        self.children_seconds = cpu_seconds_of_children(self.pid)  # known until it is reaped
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if pid else None

    def _read_status_in(self, box: Box) -> int | None:
        """A box tells how its ranks ended; what died with it was killed."""
        was_dead = box.is_dead
        ended = box.read_exits().get(self.number, RankExit(-signal.SIGKILL) if was_dead else None)
        if ended is None:
            return None
        self.children_seconds = ended.children_seconds
        return ended.status


def fork_ranks(config: AttemptConfig, rendezvous_port: int | None, box: Box | None) -> list[RankHandle]:
    """Fork all ranks, in their box where there is one. They wait, and use no device and run no user's code, until the
    start message.

    Must be called from the supervisor's main thread: the parent-death signal is bound to the thread
    that forks.

    Raises:
        OSError: a process cannot be forked.
    """
    attempt_directory = AttemptDirectory.of(config.state_dir, config.attempt)
    # Inherited by the ranks and by all that they fork; this process closes it below.
    lock = os.open(attempt_directory.ranks_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    shared = SharedFiles(lock, os.memfd_create("start_message"), profile_request.create_request())
    if box is None and config.account is not None and config.account.is_own:
        attempt_directory.account.write_text(str(config.account.uid))
    group = _create_cgroup(config, attempt_directory) if box is None else None
    plumbing = {number: _open_pipes(config, number) for number in config.ranks}
    ranks = []
    for number, pipes in plumbing.items():
        if box is None:
            pid = _fork_rank(config, number, pipes, shared, rendezvous_port, group)
            pidfd = os.pidfd_open(pid)
        else:
            pid, pidfd = box.fork_rank(number, rendezvous_port, [*astuple(shared), *_rank_ends(pipes)])
        outputs = [OutputPipe(fd, device, stream) for (device, stream), (fd, _) in pipes.outputs.items()]
        ends = pipes.channel[0], pipes.command[1], shared.start_message, shared.profile_request
        node = config.node if config.is_gang else ""
        ranks.append(RankHandle(number, pid, pidfd, *ends, outputs, box=box, node=node))
    for pipes in plumbing.values():
        os.close(pipes.command[0])
        for _, write_end in (pipes.channel, *pipes.outputs.values()):
            os.close(write_end)
    os.close(lock)
    for rank in ranks:
        for fd in (rank.channel, rank.command, *(output.fd for output in rank.outputs)):
            os.set_blocking(fd, False)
    return ranks


def fork_rank_in_box(config: AttemptConfig, message: BoxMessage, plan: BoxPlan) -> int:
    """Fork a rank in the first process of its box, with the descriptors that came along; its process id there."""
    number, port = message.fields["rank"], message.fields["port"]
    lock, start_message, request, channel, command, *outputs = message.descriptors
    keys = [(device, stream) for device, _ in config.devices_of(number) for stream in STREAMS]
    pipes = RankPipes((-1, channel), (command, -1), {key: (-1, fd) for key, fd in zip(keys, outputs, strict=True)})
    shared = SharedFiles(lock, start_message, request)
    pid = os.fork()
    if pid == 0:
        try:
            run_rank(config, number, pipes, shared, os.getppid(), port, confinement=Confinement(plan.syscalls))
        except BaseException:  # noqa: BLE001  (nothing may escape into the box's first process)
            traceback.print_exc()
        finally:
            os._exit(EXIT_BROKEN)
    return pid


def _fork_rank(
    config: AttemptConfig,
    number: int,
    pipes: RankPipes,
    shared: SharedFiles,
    port: int | None,
    group: JobCgroup | None,
) -> int:
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            if group is not None:
                with contextlib.suppress(OSError):
                    group.enter()
            run_rank(config, number, pipes, shared, supervisor, port)
        except BaseException:  # noqa: BLE001  (nothing may escape into the supervisor's stack)
            traceback.print_exc()
        finally:
            os._exit(EXIT_BROKEN)
    return pid


def _create_cgroup(config: AttemptConfig, directory: AttemptDirectory) -> JobCgroup | None:
    """A cgroup for ranks without a box, limited as far as the host allows it. Parts of one attempt may be on one host,
    and each has a cgroup of its own: whoever sweeps one kills all that is in it."""
    name = directory.directory.name
    group = cgroup.create_cgroup(f"{name}.{config.part}" if config.part else name)
    if group is not None:
        group.write_record(directory.cgroup)
        if config.limits is not None:
            with contextlib.suppress(OSError):
                group.set_limits(config.limits, len(config.devices))
    return group


def _rank_ends(pipes: RankPipes) -> list[int]:
    """The ends of its pipes that a rank keeps, in the order in which `fork_rank_in_box` takes them."""
    return [pipes.channel[1], pipes.command[0], *(write_end for _, write_end in pipes.outputs.values())]


def _is_working(pid: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return bool(command) and b"multiprocessing.resource_tracker" not in command  # a zombie has no command


def await_death(ranks: list[RankHandle], seconds: float) -> None:
    """Wait until one of these ranks, which run on this node, is dead, for at most `seconds`."""
    deaths = select.poll()
    for rank in ranks:
        deaths.register(rank.pidfd, select.POLLIN)
    if ranks:
        deaths.poll(seconds * 1000)


def _open_pipes(config: AttemptConfig, number: int) -> RankPipes:
    return RankPipes(
        channel=os.pipe(),
        command=os.pipe(),
        outputs={(device, stream): os.pipe() for device, _ in config.devices_of(number) for stream in STREAMS},
    )
