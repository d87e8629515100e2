"""The report of a script: whoever trains feeds the rank that it is, and phases are joined without epochs."""

import tracemalloc
from collections.abc import Sequence

import pytest

from jobs.protocol.probe_records import Wrapped
from jobs.protocol.records import BatchSplit, Note, PrimitiveTimes
from shardyard.contract.report import decode_report, encode_report
from tests.support.memory import allocated
from tests.support.samples.record_streams import split, step
from tests.support.samples.script_streams import (
    DDP,
    activity,
    began,
    counted,
    end,
    feed,
    findings,
    joined,
    loaded,
    rows_of,
    steps,
    told,
)
from workers.supervisor.report.aggregator import MAX_RANKS
from workers.supervisor.report.script_aggregator import ScriptAggregator
from workers.supervisor.report.step_joiner import MAX_WAITING

# -- one process -----------------------------------------------------------------------------------


def test_a_script_that_wraps_nothing_has_rows_and_times_all_the_same() -> None:
    script = told()
    feed(script, [*steps([[30]] * 3 + [[10]]), activity(4, 4)])
    end(script)
    report = script.make_report(final=True)

    assert counted(report) == {("train", "", (30,)): 3, ("train", "", (10,)): 1}
    assert rows_of(report) == [100]
    assert report.per_device[0].ms_per_row == pytest.approx(0.3)
    assert report.findings == ()
    assert "wrapped no module and made no process group" in report.notes["strategy"]


def test_there_is_no_plan_to_hold_a_script_against() -> None:
    script = told()
    feed(script, steps([[30]]))
    end(script)
    report = script.make_report(final=True)

    assert report.prediction.matches is None
    assert report.notes["prediction.matches"].startswith("nothing was planned: how a script uses")


def test_a_rehearsal_says_so_and_older_reports_were_none() -> None:
    rehearsed, plain = told(rehearse=True).make_report(final=True), told().make_report(final=True)

    assert (rehearsed.rehearsal, plain.rehearsal) == (True, False)
    assert decode_report(encode_report(plain).replace(b',"rehearsal":false', b"")).rehearsal is False


def test_data_parallel_is_seen_whatever_the_strategy_was_called() -> None:
    script = told("single", 2)
    records = steps([[15, 15], [5, 5]], (0, 1))
    feed(script, [Wrapped("DataParallel", "Net", (0, 1)), records[0]])
    feed(script, [step(0, [0], [15, 15], primitives=PrimitiveTimes(1.0, 2.0, 3.0, 4.0)), *records[2:], activity(2, 2)])
    report = script.make_report(final=False)

    assert counted(report) == {("train", "", (15, 15)): 1, ("train", "", (5, 5)): 1}
    assert report.primitives is not None
    assert report.primitives.gather_ms.total == 4.0
    assert "wrapped Net in DataParallel" in report.notes["strategy"]
    assert "computed as if the shards had run in parallel" in report.notes["balance.time_max_over_mean"]


def test_phases_are_kept_apart_and_the_devices_are_about_training() -> None:
    script = told()
    feed(script, steps([[8]] * 2))
    feed(script, steps([[32]] * 3, phase="eval", first_id=10))
    feed(script, steps([[8]] * 2, first=2, first_id=20))
    report = script.make_report(final=False)

    assert counted(report) == {("train", "", (8,)): 4, ("eval", "", (32,)): 3}
    assert rows_of(report) == [32]


def test_a_script_that_only_evaluates_has_its_devices_described_by_that() -> None:
    script = told()
    feed(script, [*steps([[32]] * 3, phase="eval"), activity(3, 0)])
    end(script)
    report = script.make_report(final=True)

    assert rows_of(report) == [96]
    assert "the numbers cover the phase eval" in report.notes["per_device"]
    assert "no-work-done" not in findings(report)


def test_each_wrapped_module_has_patterns_of_its_own() -> None:
    script = told("dp", 2)
    feed(script, [split(0, [0, 1], [4, 4], module="Generator"), split(1, [0, 1], [4, 4], module="Discriminator")])
    feed(script, [step(0, [1, 0, 1], [12, 12]), step(1, [1], [4, 4])])
    report = script.make_report(final=False)

    assert counted(report) == {
        ("train", "Discriminator", (8, 8)): 1,
        ("train", "Generator", (4, 4)): 1,
        ("train", "Discriminator", (4, 4)): 1,
    }
    assert rows_of(report) == [16, 16]
    assert report.notes["per_device.rows"] == "the rows of 2 modules are added up: Discriminator, Generator"


def test_times_belong_to_their_devices_where_modules_use_different_ones() -> None:
    script = told("dp", 2)
    feed(script, [split(0, [1], [4], module="first"), split(1, [0], [4], module="second")])
    feed(script, [step(0, [0, 1], [4, 4], forward_ms=(1.0, 9.0))])
    first, second = script.make_report(final=False).per_device

    assert first.forward_ms is not None
    assert second.forward_ms is not None
    assert (first.forward_ms.total, second.forward_ms.total) == (9.0, 1.0)


def test_rows_that_the_probe_does_not_trust_are_null_and_its_reasons_stand_side_by_side() -> None:
    script = told()
    feed(script, [BatchSplit(0, "train", "", None, (0,), (None,), ((35, 20),), ((35, 20),)), step(0, [0], [0])])
    feed(script, [Note("patterns.rows", "dimension 0 is 35"), Note("patterns.rows", "the loader gave 20")])
    report = script.make_report(final=False)

    assert rows_of(report) == [None]
    assert report.notes["patterns.rows"].startswith("dimension 0 is 35; the loader gave 20")


def test_a_loader_that_gave_more_batches_than_were_trained_on_is_not_believed() -> None:
    script = told()
    feed(script, [*steps([[8]] * 12), loaded(104, 8, 104), activity(12, 12)])
    report = script.make_report(final=False)

    assert rows_of(report) == [96]
    assert "rank 0 took 13 batches from its DataLoader, but the model received 12" in report.notes["patterns.rows"]


# -- ranks, as they really appear ------------------------------------------------------------------


def test_ranks_of_torchrun_are_joined_by_the_number_of_the_step() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        feed(script, [joined(rank, 2), DDP, *steps([[8]] * 3 + [[2 + rank]], [rank])], rank)
    report = script.make_report(final=False)

    assert counted(report) == {("train", "", (8, 8)): 3, ("train", "", (2, 3)): 1}
    assert [device.rank for device in report.devices] == [0, 1]
    assert "wrapped Net in DistributedDataParallel and made a process group of 2 (gloo)" in report.notes["strategy"]


def test_children_that_form_a_group_are_the_ranks_and_the_parent_holds_nobody_back() -> None:
    script = told("single", 2)
    for rank in range(2):
        records = steps([[8]] * 3, [rank], first_id=(100 + rank) << 32)
        feed(script, [joined(rank, 2), DDP, *records], source=rank + 1)
    report = script.make_report(final=False)

    assert counted(report) == {("train", "", (8, 8)): 3}
    assert [device.rank for device in report.devices] == [0, 1]
    assert report.notes["strategy"].endswith("; the work was done by 2 processes that it started")


def test_a_second_generation_of_children_goes_on_counting() -> None:
    script = told("single", 2)
    for generation in range(2):
        for rank in range(2):
            source = 2 * generation + rank + 1
            records = steps([[8]] * 3, [rank], first_id=(100 + source) << 32)
            feed(script, [joined(rank, 2), *records], source=source)
        for rank in range(2):
            script.source_ended(0, 2 * generation + rank + 1)
    (pattern,) = script.make_report(final=False).patterns

    assert (pattern.rows, pattern.steps, pattern.first_step, pattern.last_step) == ((8, 8), 6, 0, 5)


def test_a_child_that_ended_early_does_not_hold_back_its_peers() -> None:
    script = told("single", 2)
    feed(script, [joined(0, 2), *steps([[8]] * 5, [0], first_id=1 << 32)], source=1)
    feed(script, [joined(1, 2), *steps([[8]] * 2, [1], first_id=2 << 32)], source=2)
    script.source_ended(0, 2)
    report = script.make_report(final=False)

    assert counted(report) == {("train", "", (8, 8)): 2, ("train", "", (8, 0)): 3}
    assert "rank 1 sent nothing for step 2" in report.notes["patterns.rows"]


def test_a_script_that_starts_itself_again_trains_as_the_same_rank() -> None:
    script = told()
    feed(script, steps([[8]] * 3, first_id=7 << 32), source=1)

    assert rows_of(script.make_report(final=False)) == [24]


def test_a_rank_that_never_trains_holds_back_the_others_for_a_while_only() -> None:
    script = told("ddp", 2)
    feed(script, steps([[8]] * (MAX_WAITING + 1), [0]))

    assert rows_of(script.make_report(final=False)) == [8 * (MAX_WAITING + 1), 0]


def test_a_rank_that_begins_very_late_loses_no_rows() -> None:
    script = told("ddp", 2)
    feed(script, steps([[8]] * (MAX_WAITING + 1), [0]))
    feed(script, steps([[4]] * 3, [1]), rank=1)
    report = script.make_report(final=False)

    assert rows_of(report) == [8 * (MAX_WAITING + 1), 12]
    assert "3 records came too late, and were counted as separate steps" in report.notes["patterns"]


def test_a_rank_that_evaluates_alone_holds_back_nobody_that_trains_on() -> None:
    script = told("ddp", 2)
    feed(script, steps([[8]] * 2, [0]))
    feed(script, steps([[8]] * 2, [1]), rank=1)
    feed(script, steps([[100]] * 3, [0], phase="eval", first_id=10))
    for rank in range(2):
        feed(script, steps([[8]] * 2, [rank], first=2, first_id=20), rank)
    report = script.make_report(final=False)

    assert counted(report) == {("train", "", (8, 8)): 4, ("eval", "", (100, 0)): 3}
    assert "patterns.rows" not in report.notes


def test_evaluations_of_unequal_length_are_joined_within_their_own_round() -> None:
    script = told("ddp", 2)
    for epoch in range(2):
        for rank in range(2):
            feed(script, steps([[8]], [rank], first=epoch, first_id=10 * epoch), rank)
            batches = [[4]] * (2 - rank)
            feed(
                script, steps(batches, [rank], phase="eval", first=len(batches) * epoch, first_id=10 * epoch + 5), rank
            )
    end(script, 2)

    evaluated = {
        rows: count for (phase, _, rows), count in counted(script.make_report(final=True)).items() if phase == "eval"
    }
    assert evaluated == {(4, 4): 2, (4, 0): 2}


def test_processes_that_share_a_device_add_up_their_rows_and_have_no_times_there() -> None:
    script = told("single", 1)
    for rank in range(2):
        feed(script, [joined(rank, 2), *steps([[8]] * 3, [0], first_id=rank << 32)], source=rank + 1)
    report = script.make_report(final=False)

    assert counted(report) == {("train", "", (16,)): 3}
    assert report.per_device[0].forward_ms is None
    assert report.notes["per_device.forward_ms"] == "several processes used one device at the same time"


def test_a_rank_beyond_all_reason_is_left_out_with_a_note() -> None:
    script = told()
    feed(script, [joined(MAX_RANKS, MAX_RANKS + 1), *steps([[8]] * 3)], source=1)

    notes = script.make_report(final=False).notes
    assert "3 steps came from more processes than a report can hold" in notes["patterns"]


def test_any_number_of_processes_is_bounded() -> None:
    script = told()
    for source in range(1000):
        feed(script, steps([[8]], first_id=source << 32), source=source)
        script.source_ended(0, source)
    report = script.make_report(final=False)

    assert "more processes than a report can hold" in report.notes["patterns"]
    assert (rows_of(report)[0] or 0) <= 8 * 300


def test_a_phase_that_nobody_knows_is_no_step() -> None:
    script = told()
    feed(script, [split(0, [0], [8], "sleep"), step(0, [0], [8], "sleep")])

    assert script.make_report(final=False).patterns == ()


# -- what it costs ---------------------------------------------------------------------------------


def feed_passes(script: ScriptAggregator, numbers: Sequence[int]) -> None:
    """Passes of ten training steps and one evaluation, on two ranks."""
    for number in numbers:
        for rank in range(2):
            for place in range(10):
                feed(script, [began(10 * number + place, 0.0), step(10 * number + place, [0], [4])], rank)
            feed(script, [loaded(40, 4, 80, number=number, digest=rank), activity(number, number)], rank)
            feed(script, [step(number, [1], [4], "eval")], rank)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_steps_and_passes_of_a_script() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        feed(script, [joined(rank, 2), split(0, [rank], [4]), split(1, [rank], [4], "eval")], rank)
    feed_passes(script, range(300))  # until all windows of steps are full
    tracemalloc.start()  # late: what is traced takes six times as long
    try:
        feed_passes(script, range(300, 420))  # until all that the windows hold is traced
        before, size = allocated(), len(encode_report(script.make_report(final=False)))
        feed_passes(script, range(420, 640))
        grown = allocated() - before
    finally:
        tracemalloc.stop()
    report = script.make_report(final=False)

    assert grown < 2200 * 16  # less than half a number a step, which takes 24 bytes and 8 for its place
    assert len(encode_report(report)) < size + 100
    assert counted(report)["train", "", (4, 4)] == 6400
