"""A report that goes on in the next attempt is the report of a run that was never stopped."""

import pickle
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.model.spec import JobSpec
from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import MAX_INTERNED, DeviceInfo, Note, Outcome, Outline, PrimitiveTimes
from jobs.splits.plan import Run, epoch_batches, evaluation_batches, predict_splits
from shardyard.contract.report import Report, Resumed
from tests.support.samples.record_streams import lease, split, step
from tests.support.samples.script_streams import script_spec
from tests.support.samples.specs import make_spec
from workers.supervisor.report.aggregator_state import VERSION
from workers.supervisor.report.leased_devices import LeasedDevice
from workers.supervisor.report.patterns import MAX_PATTERNS
from workers.supervisor.report.recipe_aggregator import RecipeAggregator
from workers.supervisor.report.script_aggregator import ScriptAggregator

Streams = list[list[AnyRecord]]  # by rank


def steps_of(spec: JobSpec, rank: int, rows: int, eval_rows: int) -> Iterator[tuple[str, int, list[tuple[int, ...]]]]:
    """Phase, epoch, and the rows of each forward on this rank's devices, step by step."""
    devices, evaluate, size = devices_of(spec, rank), spec.recipe.evaluate, spec.recipe.accumulate_steps

    def mine(runs: list[Run]) -> list[tuple[int, ...]]:
        return [tuple(rows[device] for device in devices) for rows, times in runs for _ in range(times)]

    for epoch in range(spec.recipe.epochs):
        forwards = mine(epoch_batches(spec, rows))
        for first in range(0, len(forwards), size):
            yield "train", epoch, forwards[first : first + size]
        if evaluate is not None:
            for forward in filter(any, mine(evaluation_batches(spec, eval_rows, evaluate.data.batch_size))):
                yield "eval", epoch, [forward]


def devices_of(spec: JobSpec, rank: int) -> list[int]:
    return [rank] if spec.world_size > 1 else list(range(spec.resources.devices))


class Rank:
    """Sends what a rank sends; each attempt numbers its splits from 0, and says anew where it runs."""

    def __init__(self, spec: JobSpec, rank: int) -> None:
        self.devices = devices_of(spec, rank)
        self.rank, self.spec = rank, spec
        self.chance = random.Random(rank)
        self.counts = {"train": 0, "eval": 0}

    def begin(self, attempt: int, rows: int) -> Iterator[AnyRecord]:
        self.numbers: dict[tuple[str, tuple[int, ...]], int] = {}
        for device in self.devices:
            yield DeviceInfo(device, f"device {device} of attempt {attempt}", 8 << 30)
        yield Outline(self.spec.recipe.epochs, None, None, 1, rows)
        yield Note("per_device.memory_peak_bytes", "this is no GPU")

    def step(self, phase: str, epoch: int, forwards: list[tuple[int, ...]]) -> Iterator[AnyRecord]:
        for forward in forwards:
            if (phase, forward) not in self.numbers:
                self.numbers[phase, forward] = len(self.numbers)
                yield split(self.numbers[phase, forward], self.devices, forward, phase)
        rows = [sum(parts) for parts in zip(*forwards, strict=True)]
        number, self.counts[phase] = self.counts[phase], self.counts[phase] + 1
        chance = self.chance
        yield step(
            number,
            [self.numbers[phase, forward] for forward in forwards],
            rows,
            phase,
            epoch=epoch,
            step_ms=chance.lognormvariate(3, 1),
            forward_ms=tuple(chance.lognormvariate(0, 1) if count else None for count in rows),
            backward_ms=tuple(chance.choice([None, chance.random()]) if count else None for count in rows),
            data_wait_ms=chance.choice([0.0, chance.random()]),
            comm_ms=chance.random() if self.spec.distributed else None,
            primitives=None if self.spec.distributed else PrimitiveTimes(*(chance.random() for _ in range(4))),
            memory_peak_bytes=tuple(chance.randrange(1 << 30) for _ in rows),
        )


def stream(
    spec: JobSpec, rank: int, sizes: tuple[int, int], cut: int, *, with_eval: bool, anew: bool
) -> tuple[list[AnyRecord], list[AnyRecord]]:
    """What a rank sends up to `cut` training steps (`with_eval`: and the evaluation after them, where there is one),
    and what after that: from a new process if `anew`."""
    sender, trained = Rank(spec, rank), 0
    before: list[AnyRecord] = list(sender.begin(1, sizes[0]))
    after: list[AnyRecord] = []
    later = False
    for phase, epoch, forwards in steps_of(spec, rank, *sizes):
        if not later and trained == cut and (phase == "train" or not with_eval):
            later = True
            after += sender.begin(2, sizes[0]) if anew else ()
        (after if later else before).extend(sender.step(phase, epoch, forwards))
        trained += phase == "train"
    if not later and anew:
        after += sender.begin(2, sizes[0])
    after.append(Outcome(rank, 0))
    return before, after


def feed(told: RecipeAggregator, ranks: Streams, chance: random.Random) -> None:
    """Feed what the ranks send, each in its order, and rank by rank as it happens."""
    left = [(rank, iter(records)) for rank, records in enumerate(ranks)]
    while left:
        one = chance.choice(left)
        record = next(one[1], None)
        if record is None:
            left.remove(one)
        else:
            told.add_record(one[0], record)


def the_same(report: Report) -> Report:
    """Without what tells a resumed report from an undisturbed one."""
    devices = tuple(msgspec.structs.replace(device, name="") for device in report.devices)
    return msgspec.structs.replace(report, attempt=0, resumed=None, devices=devices)


def new(spec: JobSpec, sizes: tuple[int, int] = (100, 10), attempt: int = 1) -> RecipeAggregator:
    return RecipeAggregator("job-1", attempt, spec, lease(spec.resources.devices), predict_splits(spec, *sizes))


def end(told: RecipeAggregator, ranks: int) -> Report:
    for rank in range(ranks):
        told.rank_ended(rank)
    return told.make_report(final=True)


@st.composite
def runs(draw: st.DrawFn) -> tuple[JobSpec, tuple[int, int], int, bool]:
    """A job, the sizes of its data sets, after how many training steps it is cut, and whether after an evaluation."""
    strategy = draw(st.sampled_from(["single", "dp", "ddp", "fsdp"]))
    spec = make_spec(
        strategy,
        1 if strategy == "single" else draw(st.integers(2, 4)),
        draw(st.integers(1, 7)),
        drop_last=draw(st.booleans()),
        evaluate=draw(st.one_of(st.none(), st.fixed_dictionaries({"batch_size": st.integers(1, 5)}))),
        epochs=draw(st.integers(1, 4)),
        accumulate_steps=draw(st.integers(1, 3)),
    )
    sizes = draw(st.integers(1, 30)), draw(st.integers(1, 20))
    steps = sum(phase == "train" for phase, _, _ in steps_of(spec, 0, *sizes))
    return spec, sizes, draw(st.integers(0, steps)), draw(st.booleans())


@given(runs(), st.randoms(use_true_random=False))
def test_a_report_that_was_carried_over_equals_the_undisturbed_one(
    run: tuple[JobSpec, tuple[int, int], int, bool], chance: random.Random
) -> None:
    spec, sizes, cut, with_eval = run
    ranks = range(spec.world_size)
    once = [stream(spec, rank, sizes, cut, with_eval=with_eval, anew=False) for rank in ranks]
    twice = [stream(spec, rank, sizes, cut, with_eval=with_eval, anew=True) for rank in ranks]
    undisturbed, saved, resumed = (new(spec, sizes, attempt) for attempt in (1, 1, 2))

    feed(undisturbed, [before + after for before, after in once], chance)
    feed(saved, [before for before, _ in once], chance)
    resumed.load_state(saved.dump_state())
    feed(saved, [after for _, after in once], chance)
    feed(resumed, [after for _, after in twice], chance)

    plain, went_on, carried = (end(told, len(ranks)) for told in (undisturbed, saved, resumed))
    assert went_on == plain
    assert the_same(carried) == the_same(plain)
    assert (plain.resumed, carried.resumed, carried.attempt) == (None, Resumed(cut, 1), 2)
    assert plain.prediction.matches is not False


def test_what_waits_at_a_cut_for_ranks_that_have_no_more_to_evaluate_is_carried_over() -> None:
    spec, sizes = make_spec("ddp", 2, 10, evaluate={"batch_size": 4}, epochs=2), (20, 9)
    parts = [stream(spec, rank, sizes, 1, with_eval=True, anew=True) for rank in range(2)]
    first, second = new(spec, sizes), new(spec, sizes, 2)
    feed(first, [before for before, _ in parts], random.Random(0))
    second.load_state(first.dump_state())

    counted = {(pattern.phase, pattern.rows): pattern.steps for pattern in second.make_report(final=False).patterns}

    assert counted == {("train", (10, 10)): 1, ("eval", (4, 4)): 1, ("eval", (1, 0)): 1}


def test_split_ids_of_a_new_rank_do_not_mean_what_they_meant_before() -> None:
    first, second = new(make_spec("ddp", 2, 8)), new(make_spec("ddp", 2, 8), attempt=2)
    for told, number, rows in ((first, 0, 8), (second, 1, 3)):
        if told is second:
            told.load_state(first.dump_state())
        for rank in range(2):
            told.add_record(rank, split(0, [rank], [rows]))
            told.add_record(rank, step(number, [0], [rows]))

    patterns = second.make_report(final=False).patterns

    assert [(p.rows, p.steps, p.first_step) for p in patterns] == [((8, 8), 1, 0), ((3, 3), 1, 1)]


@pytest.mark.parametrize("different", [MAX_PATTERNS + 50, pytest.param(MAX_INTERNED + 100, marks=pytest.mark.slow)])
def test_more_splits_than_are_kept_apart_go_on_counting_together(different: int) -> None:
    spec = make_spec("dp", 2, 8)
    undisturbed, first, second = new(spec), new(spec), new(spec, attempt=2)

    def send(told: RecipeAggregator, number: int, split_id: int) -> None:
        told.add_record(0, split(split_id, [0, 1], [number + 1, number]))
        told.add_record(0, step(number, [split_id], [number + 1, number]))

    for number in range(different):
        send(undisturbed, number, number)
        send(first, number, number)
    second.load_state(first.dump_state())
    for number in range(different, different + 10):
        send(undisturbed, number, number)
        send(second, number, number - different)
    send(undisturbed, 3, 3)
    send(second, 3, 11)

    assert the_same(end(second, 1)) == the_same(end(undisturbed, 1))
    assert second.make_report(final=True).patterns[-1].steps == different + 10 - MAX_PATTERNS


def test_gaps_and_what_is_sent_twice_are_told_of_as_in_a_run_that_was_not_stopped() -> None:
    undisturbed, first, second = (
        new(make_spec("ddp", 2, 8)),
        new(make_spec("ddp", 2, 8)),
        new(make_spec("ddp", 2, 8), attempt=2),
    )
    begun: Streams = [
        [split(0, [0], [8]), step(0, [0], [8]), step(1, [0], [8])],
        [split(0, [1], [8]), step(1, [0], [8])],
    ]
    gone_on: Streams = [
        [split(0, [0], [8]), step(1, [0], [8]), step(2, [0], [8])],
        [split(0, [1], [8]), step(2, [0], [8])],
    ]
    for told, ranks in ((undisturbed, begun), (undisturbed, gone_on), (first, begun), (second, gone_on)):
        if told is second:
            second.load_state(first.dump_state())
        for rank, records in enumerate(ranks):
            for record in records:
                told.add_record(rank, record)

    plain, resumed = undisturbed.make_report(final=True), second.make_report(final=True)

    assert the_same(resumed) == the_same(plain)
    assert "rank 1 sent nothing for step 0" in resumed.notes["patterns.rows"]
    assert "1 records came too late" in resumed.notes["patterns"]
    assert sum(pattern.steps or 0 for pattern in resumed.patterns) == 3


def test_the_report_of_a_second_resume_tells_of_the_latest_checkpoint() -> None:
    spec = make_spec("single", 1, 10)
    attempts = [new(spec, attempt=number) for number in (1, 2, 3)]
    for number, told in enumerate(attempts):
        if number:
            told.load_state(attempts[number - 1].dump_state())
        told.add_record(0, split(0, [0], [10]))
        told.add_record(0, step(number, [0], [10]))

    report = attempts[2].make_report(final=False)

    assert report.resumed == Resumed(step=2, attempt=2)
    assert report.patterns[0].steps == 3


def test_the_devices_of_a_resumed_report_are_those_of_the_new_attempt() -> None:
    spec = make_spec("single", 1, 10)
    first = RecipeAggregator(
        "job-1", 1, spec, [LeasedDevice(0, "GPU-old", "host-a", "cuda", "a device")], predict_splits(spec, 10)
    )
    second = RecipeAggregator(
        "job-1", 2, spec, [LeasedDevice(0, "GPU-new", "host-b", "cuda", "a device")], predict_splits(spec, 10)
    )
    first.add_record(0, DeviceInfo(0, "old", 1))
    second.load_state(first.dump_state())
    second.add_record(0, DeviceInfo(0, "new", 2))

    (device,) = second.make_report(final=False).devices

    assert (device.id, device.node, device.name, device.memory_total_bytes) == ("GPU-new", "host-b", "new", 2)


def test_what_was_noted_before_a_state_is_loaded_is_kept_beside_it() -> None:
    spec = make_spec("single", 1, 10)
    first, second = new(spec), new(spec, attempt=2)
    first.add_record(0, Note("data", "said by the first"))
    second.add_record(0, Note("data", "said by the second"))
    second.load_state(first.dump_state())

    assert second.make_report(final=False).notes["data"] == "said by the first; said by the second"


# -- what cannot be read -----------------------------------------------------------------------------


def made() -> tuple[RecipeAggregator, bytes]:
    """A report of some steps, and its state."""
    spec = make_spec("ddp", 2, 8, evaluate={"batch_size": 4}, epochs=2)
    told = new(spec, (24, 9))
    feed(told, [stream(spec, rank, (24, 9), 4, with_eval=False, anew=False)[0] for rank in range(2)], random.Random(1))
    return told, told.dump_state()


ABOUT = {"job_id": "job-1", "strategy": "ddp", "ranks": 2, "devices": 2, "phase": "train"}


def changed(**fields: Any) -> bytes:
    return msgspec.msgpack.encode(msgspec.msgpack.decode(made()[1]) | fields)


@given(st.data())
def test_bytes_that_are_no_state_raise_and_change_nothing(data: st.DataObject) -> None:
    state = made()[1]
    broken = data.draw(
        st.one_of(
            st.binary(max_size=200),
            st.integers(0, len(state) - 1).map(lambda length: state[:length]),
            st.integers(0, len(state) - 1).map(lambda place: state[:place] + b"\xc1" + state[place + 1 :]),
        )
    )
    told = new(make_spec("ddp", 2, 8, evaluate={"batch_size": 4}, epochs=2), (24, 9))
    before = told.make_report(final=False)
    try:
        told.load_state(broken)
    except ValueError:
        assert told.make_report(final=False) == before
    else:  # a changed byte within a text or a number still is a state; the manifest's SHA-256 tells it
        assert len(broken) == len(state)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"version": VERSION + 1}, f"version {VERSION + 1} cannot be read"),
        ({"about": ABOUT | {"job_id": "job-2"}}, "a different report"),
        ({"about": ABOUT | {"ranks": 3, "devices": 3}}, "a different report"),
        ({"about": ABOUT | {"strategy": "fsdp"}}, "a different report"),
        ({"patterns": [[["train", "", 8, [8], [None], [None]], False, 1, 0, 0]]}, "not one of 2 devices"),
        ({"patterns": [[None, False, 1, 0, 0]]}, "not one of 2 devices"),
        ({"measures": {"train": [[], []]}}, "not those of 2 devices"),
        ({"late": "many"}, "not a report's state"),
        ({"further": 1}, "not a report's state"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_in_words(fields: dict[str, Any], words: str) -> None:
    told = new(make_spec("ddp", 2, 8))
    with pytest.raises(ValueError, match=words):
        told.load_state(changed(**fields))


def test_nothing_but_typed_values_is_read() -> None:
    with pytest.raises(ValueError, match="not a report's state"):
        new(make_spec("ddp", 2, 8)).load_state(pickle.dumps({"version": VERSION}))
    with pytest.raises(ValueError, match="not a report's state"):
        new(make_spec("ddp", 2, 8)).load_state(b"\x91" * 100_000)


def test_the_report_of_a_script_is_not_carried_over() -> None:
    told = ScriptAggregator("job-1", 1, script_spec(), lease(1), predict_splits(script_spec(), None))
    with pytest.raises(ValueError, match="a script's report"):
        told.dump_state()
    with pytest.raises(ValueError, match="a script's report"):
        told.load_state(made()[1])


# -- how large it is ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_state_does_not_grow_with_the_steps() -> None:
    spec = make_spec("dp", 8, 64)
    sizes = []
    told, chance = new(spec), random.Random(0)
    told.add_record(0, split(0, range(8), [8] * 8))
    for number in range(4_001):
        times = tuple(chance.lognormvariate(1, 0.3) for _ in range(8))
        told.add_record(0, step(number, [0], [8] * 8, forward_ms=times, backward_ms=times))
        if number in (1_000, 4_000):
            sizes.append(len(told.dump_state()))

    assert sizes[1] < 2 * sizes[0] < 50_000
