"""Runs ordinary training code in a fresh process with the probe installed, and brings back what it sent.

The processes are forked from a server that has torch loaded, so each run starts from a torch that nobody has
touched, and leaves ours alone. What they send goes through the codec, as it would on its way to the supervisor.
"""

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from jobs.protocol.packets import AnyRecord, PacketDecoder, encode_packet
from jobs.protocol.records import BatchSplit, Note, Record, Step
from workers.runtime.context import DeviceStreams, RankContext, RankDevice

T = TypeVar("T", bound=Record)

DEADLINE_SECONDS = 60.0
MODULES = ["torch", "torch._dynamo", "torch.distributed", "tests.support.probe_runs"]


@dataclass
class Seen:
    """What one process sent, and what its program returned."""

    records: list[AnyRecord] = field(default_factory=list)
    result: Any = None
    printed: list[str] = field(default_factory=list)  # by device

    def emit(self, record: AnyRecord) -> None:
        self.records.append(record)

    def of(self, kind: type[T]) -> list[T]:
        return [record for record in self.records if isinstance(record, kind)]

    def steps(self, phase: str = "train") -> list[Step]:
        return [step for step in self.of(Step) if step.phase == phase]

    def splits(self, phase: str = "train") -> list[list[BatchSplit]]:
        """The splits of each step."""
        known = {split.id: split for split in self.of(BatchSplit)}
        return [[known[number] for number in step.splits] for step in self.steps(phase)]

    def rows(self, phase: str = "train") -> list[list[tuple[int | None, ...]]]:
        """The rows of each device, for each forward of each step."""
        return [[split.rows for split in splits] for splits in self.splits(phase)]

    def notes(self) -> str:
        return "\n".join(f"{note.field}: {note.reason}" for note in self.of(Note))


def backward(loss: Any) -> None:
    loss.backward()


def learn(optimizer: Any, loss: Any) -> None:
    optimizer.zero_grad()
    backward(loss)
    optimizer.step()


def watched(program: Callable[..., Any], *args: Any, devices: int = 1, rehearsed: bool = False) -> Seen:
    """Run `program(*args)`, a function of a module, as a job's only process, with a log for each device."""
    return _collect([_start(program, args, 0, 1, devices, rehearsed)])[0]


def watched_ranks(program: Callable[..., Any], *args: Any, ranks: int = 2) -> list[Seen]:
    """Run `program(*args)` in as many processes, each with the environment of its rank."""
    with tempfile.TemporaryDirectory() as directory:
        store = f"file://{directory}/store"
        return _collect([_start(program, (store, rank, *args), rank, ranks, ranks, False) for rank in range(ranks)])


def _start(
    program: Callable[..., Any], args: Sequence[Any], rank: int, world: int, devices: int, rehearsed: bool
) -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(theirs, program, args, rank, world, devices, rehearsed))
    process.start()
    theirs.close()
    return process, ours


def _collect(started: Sequence[Any]) -> list[Seen]:
    """No process leaves before all have answered: a rank that is gone breaks the group of one that still joins it."""
    try:
        answers = []
        for _, pipe in started:
            assert pipe.poll(DEADLINE_SECONDS), f"no answer within {DEADLINE_SECONDS} s"
            answers.append(pipe.recv())
    finally:
        for process, pipe in started:
            pipe.close()
            process.kill()
            process.join(DEADLINE_SECONDS)
    for _, _, failure, _ in answers:
        assert not failure, failure
    return [Seen(list(*PacketDecoder().feed(packet)), result, printed) for packet, result, _, printed in answers]


def _run(pipe: Connection, program: Any, args: Any, rank: int, world: int, devices: int, rehearsed: bool) -> None:
    """In the child. It answers and waits for its end: groups that are torn down may hang."""
    sink = Seen()
    failure, result = "", None
    try:
        result = _watch(sink, program, args, rank, world, devices, rehearsed)
    except BaseException:  # noqa: BLE001  (whatever it was is told)
        failure = traceback.format_exc()
    pipe.send((encode_packet(sink.records), result, failure, sink.printed))
    pipe.poll(DEADLINE_SECONDS)  # whoever asked lets go of the pipe
    os._exit(0)


def _watch(sink: Seen, program: Any, args: Any, rank: int, world: int, devices: int, rehearsed: bool) -> Any:
    import torch

    from workers.probe import probe as script
    from workers.rehearsal import install

    torch.set_num_threads(1)
    torch.manual_seed(0)
    leased = tuple(RankDevice(index, "cpu", f"cpu:{index}") for index in range(devices))
    own = leased if world == 1 else (leased[rank],)
    logs = [
        tempfile.TemporaryFile()  # noqa: SIM115  (open until it was read, below)
        for _ in own
    ]
    streams = DeviceStreams([(log.fileno(), log.fileno()) for log in logs])
    streams.install()
    context = RankContext(rank, world, own, devices, 1, sink, streams)
    if rehearsed:
        install.install(devices, rank, world)
    probe = script.install(context, rehearsed=rehearsed)
    try:
        return program(*args)
    finally:
        probe.finish()
        streams.flush()
        for log in logs:
            log.seek(0)
            sink.printed.append(log.read().decode())
