"""Runs a recipe in real rank processes, forked from a warm forkserver as the service does."""

import multiprocessing
import os
import selectors
import signal
import socket
import time
import traceback
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeVar

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from jobs.model.spec import JobSpec
from jobs.protocol.packets import AnyRecord, PacketDecoder
from jobs.protocol.records import Outcome, ProgramBegan, Record, Step
from jobs.splits.plan import predict_splits
from shardyard.contract.report import Report
from workers.runtime.commands import CONTINUE
from workers.runtime.context import ChannelSink, CheckpointAccess, RankContext, RankDevice
from workers.supervisor.report.leased_devices import LeasedDevice
from workers.supervisor.report.recipe_aggregator import RecipeAggregator

T = TypeVar("T", bound=Record)

_server = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Saving:
    """Where ranks save, from what they go on, and after which training step each of them dies by SIGKILL."""

    drafts: Path
    resume: Path | None = None
    dies_after: int | None = None


@dataclass(frozen=True)
class RankRun:
    """What one rank sent, and how it left (its exit code, negative for a signal)."""

    records: list[AnyRecord]
    exit_code: int | None

    def of(self, kind: type[T]) -> list[T]:
        return [record for record in self.records if isinstance(record, kind)]


def run_ranks(
    spec: JobSpec, seconds: float = 60, data_root: Path | None = None, saving: Saving | None = None
) -> list[RankRun]:
    """Run `spec` on all its ranks. The last record of each that was not killed is its `Outcome`.

    None leaves before all have come to their end, as in the service: a rank that is gone breaks the collective that its
    peers are still in.

    Raises:
        TimeoutError: the ranks have not come to their end after `seconds`.
    """
    _server.set_forkserver_preload(["workers.rank.preload"])
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = TCPStore("127.0.0.1", port, None, True, wait_for_workers=False, master_listen_fd=listener.detach())
    receivers, processes = [], []
    waits, leave = _server.Pipe(duplex=False)
    for rank in range(spec.world_size):
        receiver, sender = _server.Pipe(duplex=False)
        args = (spec.model_dump_json(), rank, port, sender, waits, data_root, saving)
        process = _server.Process(target=_rank, args=args)
        process.start()
        sender.close()
        receivers.append(receiver)
        processes.append(process)
    waits.close()
    dies_after = saving.dies_after if saving is not None else None
    with leave:
        records = _read_all(receivers, time.monotonic() + seconds, dies_after, leave)
    for process in processes:
        process.join(seconds)
    del store
    return [RankRun(seen, process.exitcode) for seen, process in zip(records, processes, strict=True)]


def _read_all(
    receivers: list[Connection], deadline: float, dies_after: int | None, leave: Connection
) -> list[list[AnyRecord]]:
    """Everything that the ranks send. They may leave when each has come to its end, or one has failed."""
    decoders = [PacketDecoder() for _ in receivers]
    records: list[list[AnyRecord]] = [[] for _ in receivers]
    with selectors.DefaultSelector() as selector:
        for rank, receiver in enumerate(receivers):
            selector.register(receiver.fileno(), selectors.EVENT_READ, rank)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"ranks still run; they sent {[seen[-1:] for seen in records]}")
            for key, _ in selector.select(left):
                data = os.read(key.fd, 1 << 16)
                records[key.data] += chain.from_iterable(decoders[key.data].feed(data))
                if not data:
                    selector.unregister(key.fd)
            last = [_last(seen, dies_after) for seen in records]
            if all(last) or any(isinstance(found, Outcome) and found.exit_code for found in last):
                leave.close()
    return records


def _last(seen: list[AnyRecord], dies_after: int | None) -> AnyRecord | None:
    """The record with which a rank has come to its end."""
    return next((record for record in seen if isinstance(record, Outcome) or _is_step(record, dies_after)), None)


def _is_step(record: AnyRecord, number: int | None) -> bool:
    return isinstance(record, Step) and (record.phase, record.step) == ("train", number)


def report_of(spec: JobSpec, runs: list[RankRun], train_rows: int | None = None) -> Report:
    """The report on what the ranks sent."""
    lease = [LeasedDevice(index, f"cpu:{index}", "here", "cpu", "virtual") for index in range(spec.resources.devices)]
    told = RecipeAggregator("job", 1, spec, lease, predict_splits(spec, train_rows))
    for rank, run in enumerate(runs):
        for record in run.records:
            told.add_record(rank, record)
        told.rank_ended(rank)
    return told.make_report(final=True)


class _Mortal(ChannelSink):
    """Sends everything up to a step, and the process dies when the others have come as far."""

    def __init__(self, fd: int, dies_after: int | None, leave: Connection) -> None:
        super().__init__(fd)
        self._dies_after = dies_after
        self._leave = leave

    def emit(self, record: AnyRecord) -> None:
        super().emit(record)
        if _is_step(record, self._dies_after):
            self.flush()
            self._leave.poll(None)
            os.kill(os.getpid(), signal.SIGKILL)


def _rank(
    spec_json: str,
    rank: int,
    port: int,
    channel: Connection,
    leave: Connection,
    data_root: Path | None,
    saving: Saving | None,
) -> None:
    from workers.training import entry

    spec = JobSpec.model_validate_json(spec_json)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_RANK": str(rank),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    sink = _Mortal(channel.fileno(), saving.dies_after if saving is not None else None, leave)
    checkpoints = CheckpointAccess(saving.drafts, saving.resume, lambda: CONTINUE) if saving is not None else None
    lease = [RankDevice(index, "cpu", f"cpu:{index}") for index in range(spec.resources.devices)]
    own = tuple(lease) if spec.world_size == 1 else (lease[rank],)
    code, trace = 0, ""
    try:
        context = RankContext(
            rank,
            spec.world_size,
            own,
            len(lease),
            1,
            sink,
            data_root=data_root,
            checkpoints=checkpoints,
        )
        sink.emit(ProgramBegan(time.time()))
        entry.run_recipe(spec, context)
    except BaseException:  # noqa: BLE001 - the outcome carries it
        code, trace = 1, traceback.format_exc()
    sink.emit(Outcome(rank, code, traceback=trace, at=time.time()))
    sink.close()
    leave.poll(None)
    os._exit(code)
