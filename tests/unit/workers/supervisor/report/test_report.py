"""The report's counts: what each device got, over streams such as ranks send."""

import random
import tracemalloc
from collections.abc import Sequence

import msgspec
import pytest

from jobs.protocol.records import MAX_INTERNED, BatchSplit, DeviceInfo, Note, Outcome, Outline
from jobs.splits.plan import predict_splits
from shardyard.contract.report import Pattern, Report, decode_report, encode_report
from tests.support.memory import allocated
from tests.support.samples.record_streams import aggregator, lease, rank_stream, run, split, step
from tests.support.samples.specs import make_spec
from workers.supervisor.report.patterns import MAX_PATTERNS
from workers.supervisor.report.recipe_aggregator import RecipeAggregator


def counted(report: Report) -> dict[tuple[str, tuple[int | None, ...] | None], int | None]:
    return {(pattern.phase, pattern.rows): pattern.steps for pattern in report.patterns}


def rows_of(report: Report) -> list[int | None]:
    return [device.rows for device in report.per_device]


# -- one process -----------------------------------------------------------------------------------


def test_one_device_gets_every_row() -> None:
    told, _ = run(make_spec("single", 1, 30), 100)
    report = told.make_report(final=True)

    assert counted(report) == {("train", (30,)): 3, ("train", (10,)): 1}
    assert rows_of(report) == [100]
    assert report.per_device[0].share == 1.0
    assert report.prediction.matches is True
    assert report.primitives is None
    assert report.balance.rows_max_over_mean == 1.0
    assert report.balance.slowest_device is None


def test_three_devices_under_dp_get_what_torch_gives_them() -> None:
    told, _ = run(make_spec("dp", 3, 30), 100)
    report = told.make_report(final=True)

    full, last = report.patterns
    assert (full.batch_rows, full.rows, full.steps, full.first_step, full.last_step) == (30, (10, 10, 10), 3, 0, 2)
    assert (last.batch_rows, last.rows, last.steps, last.first_step, last.last_step) == (10, (4, 4, 2), 1, 3, 3)
    assert full.input_shapes == ((10, 5), (10, 5), (10, 5))
    assert full.output_shapes == ((10, 2), (10, 2), (10, 2))
    assert rows_of(report) == [34, 34, 32]
    assert [device.share for device in report.per_device] == [0.34, 0.34, 0.32]
    assert report.balance.rows_max_over_mean == 1.02
    assert {finding.code for finding in report.findings} == {"ragged-last-batch", "ddp-would-fit-better"}
    assert (report.strategy, report.device_kind, report.virtual, report.final) == ("dp", "cpu", True, True)


def test_devices_that_got_nothing_of_the_last_batch_are_idle_in_it() -> None:
    told, _ = run(make_spec("dp", 8, 30), 100)
    report = told.make_report(final=True)

    assert report.patterns[1].rows == (2, 2, 2, 2, 2, 0, 0, 0)
    assert report.patterns[1].input_shapes == ((2, 5),) * 5 + (None,) * 3
    assert [device.idle_steps for device in report.per_device] == [0, 0, 0, 0, 0, 1, 1, 1]
    assert [device.steps for device in report.per_device] == [4] * 8
    assert report.balance.idle_device_steps == 3
    assert report.prediction.matches is True


def test_micro_batches_of_one_step_are_added_up() -> None:
    told = aggregator(make_spec("dp", 2, 30), None)
    told.add_record(0, split(0, [0, 1], [15, 15]))
    told.add_record(0, split(1, [0, 1], [5, 4]))
    told.add_record(0, step(0, [0, 0, 1], [35, 34]))
    report = told.make_report(final=False)

    assert counted(report) == {("train", (35, 34)): 1}
    assert report.patterns[0].batch_rows == 69
    assert rows_of(report) == [35, 34]


def test_an_evaluation_appears_in_patterns_and_nowhere_else() -> None:
    told, _ = run(make_spec("dp", 2, 10, evaluate={"batch_size": 8}, epochs=2), 20, 12)
    report = told.make_report(final=True)

    assert counted(report) == {("train", (5, 5)): 4, ("eval", (4, 4)): 2, ("eval", (2, 2)): 2}
    assert rows_of(report) == [20, 20]
    assert report.per_device[0].steps == 4
    assert report.prediction.matches is True


def test_shapes_that_differ_under_one_split_are_said_to_vary_and_the_first_are_shown() -> None:
    told = aggregator(make_spec("dp", 2, 4), None)
    for number, length in enumerate([7, 9]):
        shapes = ((2, length), (2, length))
        told.add_record(0, BatchSplit(number, "train", "", 4, (0, 1), (2, 2), shapes, shapes))
        told.add_record(0, step(number, [number], [2, 2]))

    (pattern,) = told.make_report(final=False).patterns

    assert pattern.shapes_vary is True
    assert pattern.input_shapes == ((2, 7), (2, 7))
    assert pattern.steps == 2


def test_rows_that_cannot_be_counted_are_null_with_a_reason() -> None:
    told = aggregator(make_spec("dp", 2, 4), None)
    told.add_record(0, BatchSplit(0, "train", "", None, (0, 1), (None, None), (None, None), (None, None)))
    told.add_record(0, step(0, [0], [0, 0]))
    report = told.make_report(final=False)

    assert report.patterns[0].rows == (None, None)
    assert rows_of(report) == [None, None]
    assert report.balance.rows_max_over_mean is None
    assert "could not be counted" in report.notes["per_device.rows"]
    assert "could not be counted" in report.notes["balance.rows_max_over_mean"]


def test_devices_that_hold_parts_of_one_model_have_costs_but_no_balance() -> None:
    spec = make_spec("single", 2, 10, parallelism={"placement": {"embedding": 0, "rnn": 1}})
    told = aggregator(spec, 20)
    told.add_record(0, split(0, [0, 1], [10, 10]))
    for number in range(2):
        told.add_record(0, step(number, [0], [10, 10]))
    told.add_record(0, Outcome(0, 0))
    report = told.make_report(final=True)

    assert rows_of(report) == [20, 20]
    assert report.per_device[1].ms_per_row == pytest.approx(0.3)
    assert report.balance.wasted_device_seconds is None
    assert "take turns" in report.notes["balance.wasted_device_seconds"]
    assert report.findings == ()
    assert report.prediction.matches is True


# -- many ranks ------------------------------------------------------------------------------------


def test_four_ranks_of_ninety_rows_get_twenty_three_each() -> None:
    told, _ = run(make_spec("ddp", 4, 30), 90)
    report = told.make_report(final=True)

    (pattern,) = report.patterns
    assert (pattern.batch_rows, pattern.rows, pattern.steps) == (92, (23, 23, 23, 23), 1)
    assert pattern.input_shapes == ((23, 5),) * 4
    assert [device.rank for device in report.devices] == [0, 1, 2, 3]
    assert {finding.code for finding in report.findings} == {"sampler-padding"}
    assert report.prediction.matches is True


@pytest.mark.parametrize("seed", range(5))
def test_the_order_in_which_pipes_are_read_changes_nothing(seed: int) -> None:
    spec = make_spec("ddp", 3, 4, epochs=3, evaluate={"batch_size": 2})
    reference = run(spec, 50, 13)[0].make_report(final=True)
    told, chance = aggregator(spec, 50, 13), random.Random(seed)
    streams = {rank: list(rank_stream(spec, rank, 50, 13)) for rank in range(3)}

    while streams:
        rank = chance.choice(list(streams))
        for _ in range(chance.randint(1, 9)):
            if streams[rank]:
                told.add_record(rank, streams[rank].pop(0))
        if not streams[rank]:
            told.rank_ended(rank)
            del streams[rank]

    assert msgspec.json.decode(encode_report(told.make_report(final=True))) == msgspec.json.decode(
        encode_report(reference)
    )


def test_ranks_with_fewer_evaluation_batches_stay_in_step_over_epochs() -> None:
    told, _ = run(make_spec("ddp", 2, 5, epochs=3, evaluate={"batch_size": 2}), 10, 5)
    report = told.make_report(final=True)

    assert counted(report) == {("train", (5, 5)): 3, ("eval", (2, 2)): 3, ("eval", (1, 0)): 3}
    assert [(pattern.first_step, pattern.last_step) for pattern in report.patterns] == [(0, 2), (0, 4), (1, 5)]
    assert report.prediction.matches is True
    assert "patterns.rows" not in report.notes


def test_a_step_is_not_counted_before_every_rank_has_sent_it() -> None:
    told = aggregator(make_spec("ddp", 2, 4), 80)
    for rank in (0, 1):
        told.add_record(rank, split(0, [rank], [4]))
    for number in range(3):
        told.add_record(0, step(number, [0], [4]))
    told.add_record(1, step(0, [0], [4]))

    assert counted(told.make_report(final=False)) == {("train", (4, 4)): 1}


def test_a_rank_that_dies_early_counts_nothing_from_there_and_the_notes_say_so() -> None:
    spec = make_spec("ddp", 3, 4, epochs=2)
    told = aggregator(spec, 60)
    for rank in range(3):
        told.add_record(rank, split(0, [rank], [4]))
        for number in range(7 if rank == 1 else 10):
            told.add_record(rank, step(number, [0], [4], epoch=number // 5))
        told.rank_ended(rank)
    report = told.make_report(final=True)

    assert counted(report) == {("train", (4, 4, 4)): 7, ("train", (4, 0, 4)): 3}
    assert rows_of(report) == [40, 28, 40]
    assert report.per_device[1].idle_steps == 3
    assert "rank 1 sent nothing for step 7" in report.notes["patterns.rows"]
    assert "uneven-mean-of-means" not in {finding.code for finding in report.findings}
    assert report.prediction.matches is True
    assert "the run ended early, after 10 of 10 train steps" in report.notes["prediction"]


def test_a_device_index_outside_the_lease_is_left_out_with_a_note() -> None:
    told = aggregator(make_spec("dp", 2, 4), 8)
    told.add_record(0, split(0, [0, 5], [2, 2]))
    told.add_record(0, step(0, [0], [2, 2]))
    report = told.make_report(final=False)

    assert report.patterns[0].rows == (None, None)
    assert "2 records were inconsistent" in report.notes["patterns"]


def test_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 2 is outside the 2 ranks"):
        aggregator(make_spec("ddp", 2, 4), 8).add_record(2, Outcome(2, 0))


# -- bounds ----------------------------------------------------------------------------------------


def feed_steps(told: RecipeAggregator, numbers: Sequence[int]) -> None:
    for first in range(0, len(numbers), 10):
        for rank in (0, 1):
            some = numbers[first : first + 10]
            told.add_steps(rank, [step(number, [0], [4], forward_ms=(number % 97 + 0.5,)) for number in some])


@pytest.mark.slow
def test_twelve_thousand_steps_take_no_more_memory_than_a_thousand() -> None:
    told = aggregator(make_spec("ddp", 2, 4), None)
    for rank in (0, 1):
        told.add_record(rank, split(0, [rank], [4]))
    feed_steps(told, range(1000))
    size = len(encode_report(told.make_report(final=False)))
    # Traced as a whole: tables and sketches grow and are folded within it, and what they let go is counted too.
    tracemalloc.start()
    try:
        feed_steps(told, range(1000, 12_000))
        grown = allocated()
    finally:
        tracemalloc.stop()
    report = told.make_report(final=False)

    assert grown < 11_000 * 16  # less than half a number a step, which takes 24 bytes and 8 for its place
    assert len(encode_report(report)) < size + 100
    assert counted(report) == {("train", (4, 4)): 12_000}


def test_splits_beyond_the_limit_count_in_one_other_pattern() -> None:
    told = aggregator(make_spec("dp", 2, 4), None)
    different = MAX_INTERNED + 200
    for number in range(different):
        told.add_record(0, split(number, [0, 1], [number + 1, 1]))
        told.add_record(0, step(number, [number], [number + 1, 1]))
    report = told.make_report(final=True)

    assert len(report.patterns) == MAX_PATTERNS + 1
    other = report.patterns[-1]
    assert (other.phase, other.rows, other.steps) == ("other", None, different - MAX_PATTERNS)
    assert (other.first_step, other.last_step) == (MAX_PATTERNS, different - 1)
    assert rows_of(report) == [different * (different + 1) // 2, different]
    assert str(MAX_PATTERNS) in report.notes["patterns"]


@pytest.mark.slow
def test_a_split_in_use_is_remembered_however_many_others_come() -> None:
    told = aggregator(make_spec("dp", 2, 4), None)
    told.add_record(0, split(0, [0, 1], [2, 2]))
    for number in range(1, MAX_INTERNED * 2):
        told.add_record(0, split(number, [0, 1], [2, 2]))
        told.add_record(0, step(number, [0, number], [4, 4]))
    report = told.make_report(final=False)

    assert counted(report) == {("train", (4, 4)): MAX_INTERNED * 2 - 1}
    assert "patterns" not in report.notes


def test_a_rank_that_lags_too_far_does_not_hold_back_the_others_for_ever() -> None:
    told = aggregator(make_spec("ddp", 2, 4), None)
    for rank in (0, 1):
        told.add_record(rank, split(0, [rank], [4]))
    for number in range(20_000):
        told.add_record(0, step(number, [0], [4]))
    told.add_record(1, step(0, [0], [4]))
    report = told.make_report(final=False)

    assert counted(report) == {("train", (4, 0)): 20_000 - 32_768 // 2}
    assert "before every rank had reported them; 1 records came too late" in report.notes["patterns"]


# -- prediction ------------------------------------------------------------------------------------


def test_a_report_in_the_middle_of_a_run_does_not_judge_the_plan() -> None:
    told = aggregator(make_spec("dp", 2, 10), 40)
    report = told.make_report(final=False)

    assert report.final is False
    assert report.prediction.matches is None
    assert report.notes["prediction.matches"] == "compared when the attempt has ended"


def test_a_split_that_was_not_planned_is_a_difference() -> None:
    told = aggregator(make_spec("dp", 2, 10), 10)
    told.add_record(0, split(0, [0, 1], [6, 4]))
    told.add_record(0, step(0, [0], [6, 4]))
    told.add_record(0, Outcome(0, 0))
    report = told.make_report(final=True)

    assert report.prediction.matches is False
    assert report.prediction.differences == [
        "train: a batch of 10 split 6, 4: not planned, but observed in 1 step",
        "train: a batch of 10 split 5, 5: planned in 1 step, observed in 0",
    ]


def test_a_run_that_was_cut_short_is_no_mismatch_but_is_said() -> None:
    told = aggregator(make_spec("dp", 2, 10), 100)
    told.add_record(0, split(0, [0, 1], [5, 5]))
    for number in range(4):
        told.add_record(0, step(number, [0], [5, 5]))
    told.add_record(0, Outcome(0, 1, "code_error", "ValueError"))
    report = told.make_report(final=True)

    assert report.prediction.matches is True
    assert "ended early, after 4 of 10 train steps" in report.notes["prediction"]


def test_a_rank_that_is_missing_from_a_step_of_a_run_that_completed_is_a_difference() -> None:
    told = aggregator(make_spec("ddp", 2, 10), 40)
    for rank in (0, 1):
        told.add_record(rank, split(0, [rank], [10]))
        for number in range(2 - rank):
            told.add_record(rank, step(number, [0], [10]))
        told.add_record(rank, Outcome(rank, 0))
        told.rank_ended(rank)

    assert told.make_report(final=True).prediction.differences == [
        "train: a batch of 10 split 10, 0: not planned, but observed in 1 step",
        "train: a batch of 20 split 10, 10: planned in 2 steps, observed in 1",
    ]


def test_too_few_steps_in_a_run_that_completed_are_a_difference() -> None:
    told = aggregator(make_spec("dp", 2, 10), 100)
    told.add_record(0, split(0, [0, 1], [5, 5]))
    told.add_record(0, step(0, [0], [5, 5]))
    told.add_record(0, Outcome(0, 0))

    (difference,) = told.make_report(final=True).prediction.differences

    assert difference == "train: a batch of 10 split 5, 5: planned in 10 steps, observed in 1"


def test_steps_beyond_the_plan_are_a_difference_even_when_cut_short() -> None:
    told = aggregator(make_spec("dp", 2, 10, max_steps=2), 100)
    told.add_record(0, split(0, [0, 1], [5, 5]))
    for number in range(3):
        told.add_record(0, step(number, [0], [5, 5]))

    assert told.make_report(final=True).prediction.matches is False


def test_a_run_that_max_steps_ends_is_as_planned() -> None:
    told = aggregator(make_spec("dp", 2, 10, max_steps=2), 100)
    told.add_record(0, split(0, [0, 1], [5, 5]))
    for number in range(2):
        told.add_record(0, step(number, [0], [5, 5]))
    told.add_record(0, Outcome(0, 0))
    report = told.make_report(final=True)

    assert report.prediction.matches is True
    assert "prediction" not in report.notes


def test_a_run_without_a_step_is_not_judged() -> None:
    report = aggregator(make_spec("dp", 2, 10), 100).make_report(final=True)

    assert report.prediction.matches is None
    assert report.notes["prediction"] == "no step took place"


def test_a_run_that_was_planned_without_a_step_and_made_none_is_as_planned() -> None:
    told = aggregator(make_spec("dp", 2, 10, drop_last=True), 9)
    told.add_record(0, Outcome(0, 0))
    report = told.make_report(final=True)

    assert report.prediction.matches is True
    assert "no full batch" in report.notes["prediction"]


def test_a_plan_without_the_number_of_rows_is_completed_by_the_worker() -> None:
    spec = make_spec("dp", 2, 10)
    told = aggregator(spec, None)
    told.add_record(0, Outline(1, 2, 2, 10, 20))
    for record in rank_stream(spec, 0, 20):
        told.add_record(0, record)

    assert told.make_report(final=True).prediction.matches is True


def test_a_plan_whose_rows_nobody_ever_knew_is_not_judged() -> None:
    spec = make_spec("dp", 2, 10)
    told = aggregator(spec, None)
    for record in rank_stream(spec, 0, 20):
        told.add_record(0, record)
    report = told.make_report(final=True)

    assert report.prediction.matches is None
    assert "size of the data set was not known" in report.notes["prediction"]


def test_a_split_along_another_dimension_is_judged_by_its_steps() -> None:
    told = aggregator(make_spec("dp", 2, 10, parallelism={"dim": 1}), 30)
    told.add_record(0, split(0, [0, 1], [3, 2]))
    for number in range(2):
        told.add_record(0, step(number, [0], [3, 2]))
    told.add_record(0, Outcome(0, 0))
    report = told.make_report(final=True)

    assert report.prediction.differences == ["train: 3 steps planned, 2 observed"]
    assert "rows could not be planned" in report.notes["prediction"]


# -- the document ----------------------------------------------------------------------------------


def null_paths(value: object, path: str = "") -> set[str]:
    """Paths of the nulls that a reader meets, list indexes left out."""
    if value is None:
        return {path}
    if isinstance(value, dict):
        return {p for key, item in value.items() for p in null_paths(item, f"{path}.{key}" if path else key)}
    if isinstance(value, list) and not path.endswith("_shapes"):
        return {p for item in value for p in null_paths(item, path)}
    return set()


@pytest.mark.parametrize(
    ("strategy", "devices", "kind"),
    [
        ("single", 1, "cpu"),
        ("dp", 8, "cpu"),
        ("dp", 2, "cuda"),
        ("dp", 1, "cuda"),
        ("ddp", 4, "cpu"),
        ("ddp", 2, "cuda"),
    ],
)
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("rows", [0, 90])
def test_every_null_has_its_reason(strategy: str, devices: int, kind: str, final: bool, rows: int) -> None:
    spec = make_spec(strategy, devices, 30)
    told, _ = run(spec, rows, kind=kind)

    report = told.make_report(final=final)

    body = msgspec.json.decode(encode_report(report))
    # Null where nothing was resumed, and where rows have no weights.
    assert null_paths(body) - {"resumed", "weights"} <= set(report.notes)
    assert all(report.notes.values())


def test_what_a_rank_says_about_a_field_comes_before_a_general_reason() -> None:
    told = aggregator(make_spec("ddp", 2, 10), 20)
    told.add_record(0, Note("per_device.comm_ms", "this build of torch does not log it"))
    told.add_record(0, split(0, [0], [10]))
    told.add_record(1, split(0, [1], [10]))
    for rank in (0, 1):
        told.add_record(rank, step(0, [0], [10]))

    assert told.make_report(final=False).notes["per_device.comm_ms"] == "this build of torch does not log it"


def test_what_a_rank_found_a_device_to_be_replaces_what_the_lease_said() -> None:
    told = aggregator(make_spec("dp", 2, 10), 20, kind="cuda")
    told.add_record(0, DeviceInfo(1, "a real card", 80 * 2**30))
    first, second = told.make_report(final=False).devices

    assert (first.name, first.memory_total_bytes) == ("a device", None)
    assert (second.name, second.memory_total_bytes) == ("a real card", 80 * 2**30)


def test_a_lease_in_any_order_is_reported_by_logical_device() -> None:
    spec = make_spec("dp", 3, 10)
    told = RecipeAggregator("job-1", 1, spec, lease(3)[::-1], predict_splits(spec, 10))

    assert [device.id for device in told.make_report(final=False).devices] == ["cpu:0", "cpu:1", "cpu:2"]


def test_a_report_survives_its_own_json_and_fields_from_the_future() -> None:
    report = run(make_spec("dp", 3, 30), 100)[0].make_report(final=True)
    body = msgspec.json.decode(encode_report(report))
    body["from_the_future"] = {"unknown": 1}
    body["patterns"][0]["colour"] = "blue"

    assert decode_report(encode_report(report)) == report
    assert decode_report(msgspec.json.encode(body)) == report


def test_the_fields_are_those_of_the_documented_report() -> None:
    body = msgspec.json.decode(encode_report(run(make_spec("dp", 3, 30), 100)[0].make_report(final=True)))

    assert list(body) == [
        *("job_id", "attempt", "final", "strategy", "device_kind", "virtual", "devices", "patterns", "per_device"),
        *("primitives", "balance", "prediction", "findings", "notes", "rehearsal", "resumed"),
        *("what_if", "verdict", "rows_per_second", "hardware", "learning_rate"),
        *("tokens_per_second", "flop_per_step", "flop_per_second", "mfu", "per_node", "step_times", "weights"),
    ]
    assert list(body["patterns"][0]) == list(Pattern.__struct_fields__)
    assert body["patterns"][0]["rows"] == [10, 10, 10]
    assert body["per_device"][0]["forward_ms"].keys() == {"total", "p50", "p95", "measured_steps", "error"}


def test_bytes_that_are_no_report_are_refused() -> None:
    with pytest.raises(ValueError, match="job_id"):
        decode_report(b"{}")
