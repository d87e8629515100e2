"""Records of a job over many hosts: what each rank sends its leader, and what they cost the leader.

Simulated: each rank's records of steps, at a pace, go through what its follower does with them, over no network, and
then through what the leader does: messages decoded, steps counted, progress and report published to a telemetry Redis
with the product's configuration. Time is that of the steps, so a minute of training is reckoned in seconds; cores are
CPU time over the time of the steps. Beside it every step is sent of itself, as the ranks of a single host send theirs.
The worst case has batches of ever other shapes, as lengths of text that nothing pads: no block has a second step, and a
shape that is new comes along with its step.

Not in it: heartbeats, logs, checkpoints, the reading of sockets (`hosts` has them all, on two hosts). Eight ranks a
host.
"""

import random
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from benchmarks.harness.comparing import Figure, Say, Scale, at_most
from benchmarks.harness.finished import TENANT
from benchmarks.harness.servers import redis_server
from jobs.model.spec import JobSpec
from jobs.model.spec_rules import parse_spec
from jobs.protocol.packets import PacketDecoder, batch_steps, encode_packet
from jobs.protocol.records import BatchSplit, Step
from jobs.splits.plan import predict_splits
from jobs.store import AttemptId
from workers.supervisor.gang.block_pace import RecordRelay
from workers.supervisor.link.messages import Message, RankBlock, RankBytes, decode_from_follower, encode
from workers.supervisor.report.leased_devices import LeasedDevice
from workers.supervisor.report.script_aggregator import ScriptAggregator
from workers.supervisor.report.step_blocks import choose_block_size
from workers.supervisor.telemetry import publisher as publisher_module
from workers.supervisor.telemetry.publisher import TelemetryPublisher
from workers.supervisor.telemetry.shipper import StreamShipper

TITLE = "Records of a job on many hosts, at its leader"
OURS, EACH = "in blocks", "step by step"
RANKS_PER_HOST = 8
#: What a leader of 1,024 ranks at ten steps a second may take, and what each rank may send in a second.
GOAL_CORES, GOAL_BYTES = 0.05, 1024.0
#: After the first thousand steps, whose lines are all in the log.
FIRST_STEP = 1024
#: A rank writes its records so often.
WRITES_A_SECOND = 5
#: So long is simulated, and with every step of itself at most so many of all ranks, which take long.
MEASURED_SECONDS = 30.0
MAX_EACH = 32_768
#: Of a frame on the link: its length and its code (`workers.supervisor.link.framing`).
FRAME_BYTES = 20


@dataclass(frozen=True, slots=True)
class Load:
    """`pace` is in steps a second. `is_ragged`: no two batches of a rank have the same shape."""

    ranks: int
    pace: float
    is_ragged: bool = False

    def __str__(self) -> str:
        shapes = ", ever other shapes" if self.is_ragged else ""
        return f"{self.ranks} ranks, {self.pace:g} steps a second{shapes}"


def run(scale: Scale, say: Say) -> list[Figure]:
    return [*_even_batches(scale, say), *_ragged_batches(scale, say)]


def _even_batches(scale: Scale, say: Say) -> list[Figure]:
    cores: list[Figure] = []
    sent: list[Figure] = []
    for ranks in scale.pick((16, 128, 1024), (16, 64)):
        samples = _in_turns(Load(ranks, 10.0), scale, say)
        goals = [at_most(GOAL_CORES)] if ranks == 1024 else []
        found = {side: [one[0] for one in each] for side, each in samples.items()}
        cores.append(Figure("leader, 10 steps a second", "cores", found, goals, size=float(ranks), size_of="ranks"))
    for pace in scale.pick((1.0, 10.0, 100.0, 1000.0), (10.0, 100.0)):
        samples = _in_turns(Load(16, pace), scale, say)
        found = {side: [one[1] for one in each] for side, each in samples.items()}
        sent.append(
            Figure(
                "sent by a rank in a second, 16 ranks",
                "bytes",
                found,
                [at_most(GOAL_BYTES)],
                size=pace,
                size_of="steps a second",
            )
        )
    return cores + sent


def _ragged_batches(scale: Scale, say: Say) -> list[Figure]:
    """The worst case, without a goal: what a step takes there is what it takes by itself."""
    figures: list[Figure] = []
    for load in [Load(16, pace, True) for pace in scale.pick((1.0, 10.0, 100.0), (10.0,))] + [Load(128, 10.0, True)]:
        samples = _in_turns(load, scale, say)
        for index, (name, unit) in enumerate((("leader", "cores"), ("sent by a rank in a second", "bytes"))):
            found = {side: [one[index] for one in each] for side, each in samples.items()}
            figures.append(Figure(f"{name}, {load}", unit, found))
    return figures


def _in_turns(load: Load, scale: Scale, say: Say) -> dict[str, list[tuple[float, float]]]:
    """(cores of the leader, bytes that a rank sends in a second) in each round."""
    samples: dict[str, list[tuple[float, float]]] = {OURS: [], EACH: []}
    block = choose_block_size(load.pace, load.ranks)
    steps = max(round(MEASURED_SECONDS * load.pace), 4 * block)
    alone = min(steps, MAX_EACH // load.ranks)
    for _ in range(scale.rounds_of(3, 1)):
        samples[OURS].append(_simulate(load, alone if load.is_ragged else steps, block))
        samples[EACH].append(_simulate(load, alone, 1))
    for side, each in samples.items():
        say(f"{load}, {side}: {each[-1][0]:.4f} cores, {each[-1][1]:.0f} bytes")
    return samples


def _simulate(load: Load, steps: int, block: int) -> tuple[float, float]:
    ranks, pace = load.ranks, load.pace
    with (
        tempfile.TemporaryDirectory(prefix="shardyard-bench-") as directory,
        redis_server("telemetry") as server,
        ExitStack() as clocked,
    ):
        publisher = _publisher(server.url, Path(directory), ranks)
        leader = _Leader(publisher, ranks)
        for rank in range(ranks):
            leader.take(RankBytes(rank, encode_packet([_split(rank)])))
        outbox: list[Message] = []
        relays = [RecordRelay(rank, outbox.append) for rank in range(ranks)]
        for relay in relays:
            relay.set_size(block)
        chance, size = random.Random(7), 0
        began = time.process_time()
        followers = 0.0
        written = max(1, round(pace / WRITES_A_SECOND))
        now = 0.0
        clocked.enter_context(patch.object(publisher_module, "monotonic", lambda: now))  # the time of the steps
        for first in range(FIRST_STEP, FIRST_STEP + steps, written):
            numbers = range(first, min(first + written, FIRST_STEP + steps))
            own = time.process_time()
            for rank, relay in enumerate(relays):
                relay.add(encode_packet(_records(load, rank, numbers, chance)))
            payloads = [encode(message) for message in outbox]
            outbox.clear()
            size += sum(map(len, payloads)) + FRAME_BYTES * len(payloads)
            followers += time.process_time() - own
            for payload in payloads:
                leader.take(decode_from_follower(payload))
            now = (numbers.stop - FIRST_STEP) / pace
            publisher.flush_due(time.time())
        spent = time.process_time() - began - followers
        publisher.seal()
        publisher.close()
    seconds = steps / pace
    return spent / seconds, size / seconds / ranks


class _Leader:
    """What a leader does with its followers' messages about steps."""

    def __init__(self, publisher: TelemetryPublisher, ranks: int) -> None:
        self._publisher = publisher
        self._decoders = [PacketDecoder() for _ in range(ranks)]

    def take(self, message: object) -> None:
        if isinstance(message, RankBlock):
            self._publisher.add_steps(message.rank, [message.block])
        elif isinstance(message, RankBytes):
            for packet in self._decoders[message.rank].feed(message.data):
                for record in batch_steps(packet):
                    self._publisher.add_record(message.rank, record)


def _publisher(telemetry: str, directory: Path, ranks: int) -> TelemetryPublisher:
    spec = _spec(ranks)
    lease = [
        LeasedDevice(rank, f"gpu-{rank}", f"host-{rank // RANKS_PER_HOST}", "cuda", "a card") for rank in range(ranks)
    ]
    aggregator = ScriptAggregator("job-1", 1, spec, lease, predict_splits(spec, None, None))
    shipper = StreamShipper(telemetry, TENANT, "job-1", 1)
    attempt = AttemptId(TENANT, "job-1", 1)
    return TelemetryPublisher(directory, attempt, ranks, shipper, aggregator, spec, directory / "no samples")


def _spec(ranks: int) -> JobSpec:
    hosts = max(1, ranks // RANKS_PER_HOST)
    body = (
        f'{{"resources": {{"devices": {ranks // hosts}, "nodes": {hosts}}}, "parallelism": {{"strategy": "ddp"}}, '
        f'"program": {{"kind": "script", "bundle": "sha256:{"0" * 64}", "entrypoint": "train.py"}}}}'
    )
    return parse_spec(body)


def _records(load: Load, rank: int, numbers: range, chance: random.Random) -> list[BatchSplit | Step]:
    """What a rank writes of some steps."""
    if not load.is_ragged:
        return [_step(number, number / load.pace, chance) for number in numbers]
    pairs = ((_split(rank, number), _step(number, number / load.pace, chance, number)) for number in numbers)
    return [record for pair in pairs for record in pair]


def _split(rank: int, number: int = 0) -> BatchSplit:
    return BatchSplit(number, "train", "", 32, (rank,), (32,), ((32, 3, 32, 32 + number),), ((32, 10),))


def _step(number: int, at: float, chance: random.Random, split: int = 0) -> Step:
    def measured(typical: float) -> float:
        return typical * chance.uniform(0.8, 1.6)

    return Step(
        step=number,
        epoch=0,
        phase="train",
        splits=(split,),
        at=1.7e9 + at,
        step_ms=measured(9),
        data_wait_ms=measured(0.3),
        forward_ms=(measured(2),),
        backward_ms=(measured(4) if number % 10 == 0 else None,),
        comm_ms=measured(1.2) if number % 10 == 0 else None,
        memory_peak_bytes=(2**33,),
        optimizer_ms=measured(0.5),
        whole_backward_ms=measured(6),
        cycle_ms=measured(10),
    )
