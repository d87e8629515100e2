"""Steps in blocks are counted as they are one by one, and their times are estimated."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest

from jobs.protocol.packets import AnyRecord, PacketDecoder, encode_packet
from jobs.protocol.records import BatchSplit, MetricSample, Note, Step
from jobs.splits.plan import predict_splits
from shardyard.contract.report import Report
from tests.support.samples.record_streams import aggregator, lease, split, step
from tests.support.samples.script_streams import script_spec
from tests.support.samples.specs import make_spec
from workers.supervisor.gang.block_pace import BlockPace, RecordRelay
from workers.supervisor.link.messages import Message, RankBlock, RankBytes
from workers.supervisor.report.aggregator import Aggregator
from workers.supervisor.report.script_aggregator import ScriptAggregator
from workers.supervisor.report.step_blocks import (
    FIRST_BLOCKED_STEP,
    LONG_CYCLE_MS,
    MAX_BLOCK_STEPS,
    BlockMaker,
    StepBlock,
    choose_block_size,
)

RANKS = 3
EPOCH = 90  # steps, of which the last has fewer rows
STEPS = 540
SEEDS = 12


def new_script() -> ScriptAggregator:
    spec = script_spec("ddp", RANKS)
    return ScriptAggregator("job-1", 1, spec, lease(RANKS), predict_splits(spec, None, None))


def new_recipe() -> Aggregator:
    return aggregator(make_spec("ddp", RANKS), None)


def rank_steps(rank: int, generator: random.Random, evaluations: bool) -> Iterator[BatchSplit | Step]:
    """Epochs of `EPOCH` training steps with a smaller last one, and some evaluation after each."""
    yield split(0, [rank], [8])
    yield split(1, [rank], [3])
    yield split(2, [rank], [16], "eval")
    evaluated = 0
    for number in range(STEPS):
        epoch, is_last = number // EPOCH, number % EPOCH == EPOCH - 1
        rows = 3 if is_last else 8
        took: dict[str, Any] = {"forward_ms": (generator.uniform(4, 6),), "backward_ms": (generator.uniform(8, 12),)}
        yield step(number, [1 if is_last else 0], [rows], epoch=epoch, at=float(number), cycle_ms=20.0, **took)
        for _ in range(3 if is_last and evaluations else 0):
            yield step(evaluated, [2], [16], "eval", epoch=epoch, at=float(number))
            evaluated += 1


def feed_in_blocks(told: Aggregator, streams: Sequence[Sequence[BatchSplit | Step]], generator: random.Random) -> int:
    """Each rank's records in turns of random length, in blocks whose size changes at random; returns how many came."""
    makers, places, sent = [BlockMaker() for _ in streams], [0] * len(streams), 0

    def add(rank: int, pieces: Sequence[Step | StepBlock]) -> None:
        nonlocal sent
        for piece in pieces:
            sent += isinstance(piece, StepBlock)
            if isinstance(piece, StepBlock):
                told.add_block(rank, piece)
            else:
                told.add_steps(rank, [piece])

    for maker in makers:
        maker.set_size(generator.choice([2, 16, 64]))
    while any(place < len(stream) for place, stream in zip(places, streams, strict=True)):
        rank = generator.randrange(len(streams))
        for record in streams[rank][places[rank] : places[rank] + generator.randrange(1, 40)]:
            places[rank] += 1
            if isinstance(record, Step):
                add(rank, makers[rank].add([record]))
            else:
                add(rank, makers[rank].flush())
                told.add_record(rank, record)
        if generator.random() < 0.1:
            add(rank, makers[rank].set_size(generator.choice([1, 2, 16, 64])))
    for rank, maker in enumerate(makers):
        add(rank, maker.flush())
        told.rank_ended(rank)
    return sent


def feed_one_by_one(told: Aggregator, streams: Sequence[Sequence[BatchSplit | Step]]) -> None:
    for rank, stream in enumerate(streams):
        for record in stream:
            told.add_record(rank, record)
        told.rank_ended(rank)


def counted(report: Report) -> list[tuple[object, ...]]:
    """What the report says of rows, which blocks must not change."""
    patterns = [
        (one.phase, one.rows, one.steps, one.first_step, one.last_step, one.input_shapes) for one in report.patterns
    ]
    return [*patterns, *((one.rows, one.steps, one.idle_steps) for one in report.per_device)]


@pytest.mark.parametrize("make", [new_script, new_recipe])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_rows_are_exact_whatever_blocks_the_ranks_make(make: type, seed: int) -> None:
    generator = random.Random(seed)
    streams = [list(rank_steps(rank, generator, evaluations=seed % 2 == 0)) for rank in range(RANKS)]
    plain, blocked = make(), make()
    feed_one_by_one(plain, streams)
    blocks = feed_in_blocks(blocked, streams, generator)
    expected, found = plain.make_report(final=True), blocked.make_report(final=True)

    assert blocks > 20
    assert "measured in" in found.notes["per_device.forward_ms"]
    assert sorted(map(repr, counted(found))) == sorted(map(repr, counted(expected)))
    assert found.notes.get("patterns") == expected.notes.get("patterns")
    for ours, theirs in zip(found.per_device, expected.per_device, strict=True):
        assert ours.forward_ms is not None
        assert theirs.forward_ms is not None
        assert ours.forward_ms.measured_steps <= theirs.forward_ms.measured_steps == STEPS
        assert ours.forward_ms.total == pytest.approx(theirs.forward_ms.total, rel=0.05)
        assert ours.backward_ms is not None
        assert theirs.backward_ms is not None
        assert abs(ours.backward_ms.total - theirs.backward_ms.total) < 2 * ours.backward_ms.error + 1e-6


def test_equal_blocks_are_joined_as_they_are_and_times_are_from_the_same_step_of_each() -> None:
    told = new_script()
    blocks = []
    for rank in range(RANKS):
        maker = BlockMaker()
        maker.set_size(16)
        steps = [step(number, [0], [8], forward_ms=(float(number),)) for number in range(128, 160)]
        blocks.append([piece for piece in maker.add(steps) if isinstance(piece, StepBlock)])
        told.add_record(rank, split(0, [rank], [8]))
    assert [[(block.first, block.count) for block in own] for own in blocks] == [[(128, 16), (144, 16)]] * RANKS
    assert len({tuple(block.sample.step for block in own) for own in blocks}) == 1

    for rank, own in enumerate(blocks):
        for block in own:
            told.add_block(rank, block)
    report = told.make_report(final=False)
    assert [one.steps for one in report.patterns] == [32]
    assert "from the 2 of 32 steps" in report.notes["balance.time_max_over_mean"]
    assert "measured in 2 of 32 steps" in report.notes["per_device.forward_ms"]


def test_a_slow_rank_has_its_name_and_its_price_from_blocks_as_well() -> None:
    told = new_script()
    for rank in range(RANKS):
        maker = BlockMaker()
        maker.set_size(8)
        slow = 3.0 if rank == 1 else 1.0
        told.add_record(rank, split(0, [rank], [8]))
        steps = [
            step(
                number,
                [0],
                [8],
                forward_ms=(5.0 * slow,),
                backward_ms=(10.0 * slow,),
                comm_ms=45.0 - 15.0 * slow,
                step_ms=46.0,
                cycle_ms=46.0,
                at=number * 0.046,
            )
            for number in range(1000)
        ]
        for piece in maker.add(steps):
            if isinstance(piece, StepBlock):
                told.add_block(rank, piece)
            else:
                told.add_steps(rank, [piece])
    report = told.make_report(final=False)

    assert (report.balance.slowest_device, report.balance.cause) == (1, "compute")
    assert report.balance.wasted_device_seconds == pytest.approx(2 * 1000 * 0.030, rel=0.01)


@pytest.mark.parametrize(
    "odd",
    [
        step(200, [0], [8], epoch=1),
        step(200, [1], [3]),
        step(200, [0], [8], cycle_ms=LONG_CYCLE_MS),
        step(200, [0], [8], flop={"float32": (1,)}),
        step(0, [2], [16], "eval"),
    ],
)
def test_a_step_that_is_not_like_those_before_ends_a_block(odd: Step) -> None:
    maker = BlockMaker()
    maker.set_size(1024)
    before = [step(number, [0], [8]) for number in range(190, 200)]

    assert maker.add(before) == []
    (block, *_) = maker.add([odd])
    assert isinstance(block, StepBlock)
    assert (block.first, block.count) == (190, 10)


def test_the_first_steps_of_a_run_are_told_one_by_one() -> None:
    maker = BlockMaker()
    maker.set_size(4)
    told = maker.add([step(number, [0], [8]) for number in range(FIRST_BLOCKED_STEP + 8)])

    assert [type(piece) for piece in told] == [Step] * FIRST_BLOCKED_STEP + [StepBlock] * 2


def test_a_block_has_the_peak_of_its_steps_memory() -> None:
    maker = BlockMaker()
    maker.set_size(8)
    peaks = [5, 9, 4, 7, 1, 2, 3, 6]
    (block,) = maker.add([step(128 + at, [0], [8], memory_peak_bytes=(peak,)) for at, peak in enumerate(peaks)])

    assert isinstance(block, StepBlock)
    assert block.sample.memory_peak_bytes == (9,)


@pytest.mark.parametrize("rate", [1, 4, 10, 100, 1000, 100_000])
@pytest.mark.parametrize("ranks", [2, 16, 1024])
def test_blocks_keep_what_ranks_send_within_bounds_at_any_rate(rate: float, ranks: int) -> None:
    size = choose_block_size(rate, ranks)
    blocks = rate / size

    assert size & (size - 1) == 0
    assert size == MAX_BLOCK_STEPS or (blocks <= 4 and blocks * ranks <= 128)
    assert size == 1 or 2 * blocks > 4 or 2 * blocks * ranks > 128


def test_the_size_of_blocks_follows_the_pace_of_the_steps() -> None:
    now = [0.0]
    pace = BlockPace(2, lambda: now[0])
    sizes = []
    for steps in [3, 3, 100, 100, 70, 100, 10, 10, 1]:
        now[0] += 1.0
        pace.add_steps(steps)
        pace.has_changed()
        sizes.append(pace.size)

    assert sizes == [1, 1, 32, 32, 32, 32, 4, 4, 1]


def test_a_relay_passes_records_on_in_their_order_and_steps_in_blocks() -> None:
    sent: list[Message] = []
    relay = RecordRelay(1, sent.append)
    relay.set_size(4)
    steps = [step(number, [0], [8]) for number in range(128, 138)]
    records: list[AnyRecord] = [
        split(0, [1], [8]),
        *steps[:9],
        MetricSample(-1, "loss", 1, 0.5, 0.0),
        Note("patterns", "why"),
        steps[9],
    ]
    data = encode_packet(records)
    for byte in range(0, len(data), 7):
        relay.add(data[byte : byte + 7])
    relay.flush()

    decoder = PacketDecoder()
    told: list[AnyRecord] = []
    for message in sent:
        if isinstance(message, RankBlock):
            told += message.block.steps()
        elif isinstance(message, RankBytes):
            told += [record for packet in decoder.feed(message.data) for record in packet]
    assert [one.step for one in told if isinstance(one, Step)] == [one.step for one in steps]
    assert [type(one).__name__ for one in told] == [
        *("BatchSplit", *["Step"] * 8),
        *("MetricSample", "Step", "Note", "Step"),
    ]
    assert len([one for one in sent if isinstance(one, RankBlock)]) == 2


def test_what_is_no_packet_is_an_error_after_what_came_before_it() -> None:
    sent: list[Message] = []
    relay = RecordRelay(1, sent.append)

    with pytest.raises(ValueError, match="over the limit"):
        relay.add(encode_packet([Note("patterns", "why")]) + b"\xff\xff\xff\xff")
    assert [type(one) for one in sent] == [RankBytes]


def test_a_block_has_a_few_hundred_bytes() -> None:
    maker = BlockMaker()
    maker.set_size(1024)
    steps = [step(number, [0], [8], memory_peak_bytes=(2**33,), cycle_ms=1.0) for number in range(1024, 2048)]
    (block,) = maker.add(steps)

    assert len(msgspec.msgpack.encode(block)) < 250
