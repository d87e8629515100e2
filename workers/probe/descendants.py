"""The probe in processes that descend from a rank.

A child that is forked has the rank's probe in it already, and a sink whose thread is gone; both
begin anew there. A child that is a new program finds our `sitecustomize` on its path (`environment`
puts it there), which calls `join` when the program imports torch. Either way its records go through
the attempt's socket (`workers.supervisor.descendants`), and only once there is work to tell of: launchers,
workers of a DataLoader and compilers never connect.

Nothing in here may break a child, or keep it from ending.
"""

import atexit
import contextlib
import ctypes
import functools
import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, Final, NoReturn

from jobs.protocol import packets
from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import Group, Joining
from jobs.protocol.records import BatchSplit, Began, Hello, MetricSample, ProgramProgress, Step
from workers.probe import probe as script
from workers.rehearsal import install
from workers.runtime import import_hook, process_groups
from workers.runtime.context import ChannelSink, NullSink, RankContext, RankDevice, RankPlace, RecordSink
from workers.runtime.import_callbacks import when_imported

SOCKET: Final = "SHARDYARD_PROBE_SOCKET"
FAMILY: Final = "SHARDYARD_PROBE"
LENT: Final = "SHARDYARD_LENT"
BOOT: Final = Path(__file__).resolve().parents[1] / "rank" / "boot"

#: Records that show that a process has work to tell of. Others wait for one of these.
WORK: Final = (Began, BatchSplit, Step, Joining, Group, MetricSample, ProgramProgress)
MAX_WAITING: Final = 512
#: For the supervisor to let a child in: it, or its machine, may be busy.
ADMISSION_SECONDS: Final = 20.0
#: For a packet to be taken.
SEND_SECONDS: Final = 60.0
#: What the end of a process may be held up by.
FLUSH_SECONDS: Final = 3.0
ADMITTED: Final = b"+"
STOPPING: Final = b"S"


@dataclass(frozen=True, slots=True)
class Family(RankPlace):
    """What a rank and its descendants have in common, as it travels through the environment."""

    address: str  # of the attempt's socket
    rehearsed: bool
    output: str

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> "Family":
        fields = json.loads(text)
        return cls(**fields | {"devices": tuple(RankDevice(**device) for device in fields["devices"])})


def environment(family: Family) -> dict[str, str]:
    """The variables by which programs that the rank starts are followed."""
    return {
        SOCKET: family.address,
        FAMILY: family.encode(),
        LENT: import_hook.describe_packages(),
        "PYTHONPATH": str(BOOT),
    }


# -- sinks -----------------------------------------------------------------------------------------


class SocketSink(ChannelSink):
    """Sends records to the attempt's socket. Whatever goes wrong with that ends the sink, and nothing else."""

    PACKET_BYTES = packets.DESCENDANT_PACKET_BYTES

    def __init__(self, address: str, hello: Hello) -> None:
        self._address = address
        self._hello = hello
        self._socket: socket.socket | None = None
        self._told_to_stop = False
        super().__init__(-1)

    def told_to_stop(self) -> bool:
        if self._socket is not None and not self._off and not self._told_to_stop:
            with contextlib.suppress(OSError):  # nothing was said
                self._told_to_stop = self._socket.recv(1, socket.MSG_DONTWAIT) == STOPPING
        return self._told_to_stop

    def abandon(self) -> None:
        super().abandon()
        if self._socket is not None:
            self._socket.close()  # else the connection would outlive the parent

    def _run(self) -> None:
        try:
            self._socket = _dial(self._address)
            self._write_packet(packets.encode_packet([self._hello]))
            self._send_loop()
        except Exception:  # noqa: BLE001, S110  (after any error the process continues unobserved)
            pass
        finally:
            self._off = True
            self._pending.clear()
            with self._changed:
                self._changed.notify_all()

    def _write_packet(self, packet: bytes) -> None:
        # Not to a descriptor: a program that closes those that are not its own may have a file there by now.
        assert self._socket is not None
        self._socket.sendall(packet, socket.MSG_NOSIGNAL)


def _dial(address: str) -> socket.socket:
    """A connection that the supervisor has accepted; it identifies this process while the process waits.

    Raises:
        OSError: no process listens there, or the supervisor refused the connection.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        # With a timeout of Python's, a queue that is full would be an error at once.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(ADMISSION_SECONDS), 0))
        connection.connect(address)
        connection.settimeout(ADMISSION_SECONDS)
        if connection.recv(1) != ADMITTED:
            raise ConnectionRefusedError(address)
    except OSError:
        connection.close()
        raise
    connection.settimeout(SEND_SECONDS)
    # It stays open to the very end, where Python would warn some programs of that.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    return connection


class ChildSink:
    """The sink of a process that may turn out to have nothing to tell. Connects when there is work."""

    def __init__(self, address: str, hello: Hello, finish: Callable[[], None]) -> None:
        self._address = address
        self._hello = hello
        self._finish = finish
        self._waiting: list[AnyRecord] = []
        self._channel: SocketSink | None = None
        self._off = False
        self._lock = threading.Lock()

    def emit(self, record: AnyRecord) -> None:
        if self._channel is None and not self._off:
            with self._lock:
                if self._channel is None:
                    self._hold(record)
                    return
        if self._channel is not None:
            self._channel.emit(record)

    def told_to_stop(self) -> bool:
        return self._channel is not None and self._channel.told_to_stop()

    def abandon(self) -> None:
        """Send nothing more; this is the copy that a forked child has."""
        self._off = True
        if self._channel is not None:
            self._channel.abandon()

    def _hold(self, record: AnyRecord) -> None:
        self._waiting.append(record)
        if not isinstance(record, WORK):
            del self._waiting[:-MAX_WAITING]
        elif _is_worker_of_a_loader():
            self._off = True
            self._waiting.clear()
        else:
            channel = SocketSink(self._address, self._hello)
            for waiting in self._waiting:
                channel.emit(waiting)
            self._channel, self._waiting = channel, []
            atexit.register(self._at_end)
            Finalize(None, self._at_end, exitpriority=-1000)  # children of multiprocessing run no exit handlers
            _before_hard_exit(self._at_end)

    def _at_end(self) -> None:
        """Send what is owed; the process is about to end."""
        if self._channel is not None and not self._off:
            finish, self._finish = self._finish, _nothing
            finish()
            self._channel.flush(FLUSH_SECONDS)


def _before_hard_exit(act: Callable[[], None]) -> None:
    """Forked children often leave by `os._exit`."""
    leave = os._exit

    @functools.wraps(leave)
    def _exit(status: int) -> NoReturn:
        with contextlib.suppress(Exception):
            act()
        leave(status)

    os._exit = _exit


def _is_worker_of_a_loader() -> bool:
    module: Any = sys.modules.get("torch.utils.data._utils.worker")
    return module is not None and module._worker_info is not None


class FamilySink:
    """The sink of a rank or of one of its descendants; in a forked child it becomes the child's own."""

    def __init__(self, sink: RecordSink, family: Family) -> None:
        self._sink = sink
        self._family = family
        self._finish: Callable[[], None] = _nothing
        self._group: Group | None = None

    def emit(self, record: AnyRecord) -> None:
        if type(record) is Group:
            self._group = record
            if (job := _job()) is not None:
                job.belong_to(self.device)
        self._sink.emit(record)

    @property
    def inner(self) -> RecordSink:
        """What takes every record that is no `Group`."""
        return self._sink

    @property
    def device(self) -> int:
        """What series of this process belong to: the job as a whole (-1) for the first of a group, else its device."""
        rank, devices = self._family.rank, self._family.devices
        if self._group is not None and self._family.world_size == 1:
            rank = self._group.rank
        return -1 if rank == 0 else devices[rank % len(devices)].logical

    def told_to_stop(self) -> bool:
        return isinstance(self._sink, ChildSink) and self._sink.told_to_stop()

    def before_end(self, finish: Callable[[], None]) -> None:
        """Have a child call `finish` before it ends; what that emits is sent."""
        self._finish = finish

    def become_child(self, role: str) -> None:
        before = self._sink
        if isinstance(before, ChildSink | ChannelSink):
            before.abandon()
        hello = Hello(os.getpid(), os.getppid(), role, self._family.rank)
        self._sink = ChildSink(self._family.address, hello, lambda: self._finish())


def _nothing() -> None:
    pass


# -- processes -------------------------------------------------------------------------------------


def follow(context: RankContext, address: str, output: str, *, rehearsed: bool) -> RankContext:
    """The context of a rank whose descendants are followed; `attach` its probe once that is installed."""
    family = Family(*context.place(), address, rehearsed, output)
    os.environ.update(environment(family))
    return replace(context, sink=FamilySink(context.sink, family))


def attach(sink: FamilySink, probe: script.Probe) -> None:
    """Have a probe go on in children that this process forks."""

    def on_fork() -> None:
        sink.become_child("forked")
        probe.restart_in_child()
        if (job := _job()) is not None:
            job.carry_over(sink.told_to_stop)

    sink.before_end(probe.finish)
    probe.on_fork = on_fork


_joined: FamilySink | None = None
_connected = False  # shardyard.job


def join(environ: Mapping[str, str]) -> None:
    """Connect a process that a rank has started as a new program: install the probe, and tell `shardyard.job`.

    To be called within `import_hook.importable`, when the program imports torch, and when it has imported
    `shardyard.job`.
    """
    global _joined, _connected
    family = Family.decode(environ[FAMILY])
    if _joined is None:
        _joined = FamilySink(NullSink(), family)
        _joined.become_child("started")
        _install(_joined, family)
    job = _job()
    if job is not None and not _connected:
        job.connect(
            _joined.emit,
            _joined.told_to_stop,
            family.output,
            _joined.device,
            metric=MetricSample,
            progress=ProgramProgress,
        )
        _connected = True


def _install(sink: FamilySink, family: Family) -> None:
    if family.rehearsed:
        install.install(family.lease_size, family.rank, family.world_size)
    context = RankContext(*family.place(), sink, stopping=sink.told_to_stop)
    attach(sink, script.install(context, rehearsed=family.rehearsed))
    # Groups that are freed at the end of a process may deadlock it, there as well as in a rank.
    when_imported({"torch.distributed.distributed_c10d": lambda _: process_groups.prepare_groups()})


def _job() -> Any:
    """What `shardyard.job` offers, where the program has imported it."""
    return sys.modules.get("shardyard.script.job")
