"""What a script's report says is wrong, and what to change in the script: each case as its records come."""

import pytest
from msgspec.structs import replace

from jobs.protocol.probe_records import Activity, Joining, Wrapped
from jobs.protocol.records import Note, Outcome, Returned, Step
from shardyard.contract.report import Finding, Report
from tests.support.samples.script_streams import (
    DDP,
    IDLE,
    activity,
    began,
    end,
    feed,
    findings,
    joined,
    loaded,
    steps,
    told,
)
from workers.supervisor.report.script_aggregator import ScriptAggregator

DATA_PARALLEL = Wrapped("DataParallel", "Net", (0, 1))


def final(script: ScriptAggregator, ranks: int = 1, last_line: str = "", now: float | None = None) -> Report:
    end(script, ranks)
    return script.make_report(final=True, last_line=last_line, now=now)


def ranks(script: ScriptAggregator, *records: list[object]) -> None:
    for rank, said in enumerate(records):
        for record in said:
            script.add_record(rank, record)  # type: ignore[arg-type]


# -- nothing was done ------------------------------------------------------------------------------


def test_a_success_that_did_nothing_says_so_with_the_last_line_printed() -> None:
    script = told("ddp", 2)
    ranks(script, [IDLE], [IDLE])
    finding = findings(final(script, 2, "Unable to locate sufficient gpus"))["no-work-done"]

    assert finding.severity == "warning"
    assert 'the last line it printed: "Unable to locate sufficient gpus"' in finding.message
    assert "program.rehearse" in finding.suggestion


def test_a_script_that_did_nothing_on_real_gpus_is_not_told_to_rehearse() -> None:
    script = told(kind="cuda")
    feed(script, [IDLE])
    finding = findings(final(script, last_line="usage: train.py [--gpu N]"))["no-work-done"]

    assert "rehearse" not in finding.suggestion


def test_a_failure_that_did_nothing_has_an_error_and_needs_no_finding() -> None:
    script = told()
    feed(script, [IDLE, Outcome(0, 1, "code_error", "boom")])

    assert findings(script.make_report(final=True)) == {}


def test_where_the_probe_could_not_count_nothing_is_claimed() -> None:
    assert findings(final(told())) == {}


def test_backwards_without_a_module_are_work() -> None:
    script = told()
    feed(script, [Activity(0, 500, 0, 0)])

    assert findings(final(script)) == {}


def test_work_that_nobody_could_see_is_not_called_idleness() -> None:
    script = told()
    feed(script, [IDLE, Note("per_device", "no forward and no step was seen, while programs computed for 9.0 s")])
    finding = findings(final(script))["no-work-done"]

    assert finding.severity == "info"
    assert (
        finding.message
        == "the script exited with code 0; no forward and no step was seen, while programs computed for 9.0 s"
    )


def test_a_rank_that_was_killed_after_its_work_had_done_it() -> None:
    script = told()
    feed(script, [IDLE, Returned(Outcome(0, 0), "threads")])
    script.rank_ended(0)

    assert "no-work-done" in findings(script.make_report(final=True))


def test_children_that_trained_are_work() -> None:
    script = told()
    feed(script, [IDLE])
    feed(script, steps([[8]]), source=1)

    assert findings(final(script)) == {}


# -- fewer than asked for --------------------------------------------------------------------------


def test_two_were_asked_for_and_one_ran() -> None:
    script = told("ddp", 2)
    ranks(script, [*steps([[8]] * 3), activity(3, 3)], [IDLE])
    finding = findings(final(script, 2))["fewer-processes"]

    assert finding.message == "2 processes were requested and 1 worked: rank 1 ran no forward and no step"
    assert finding.suggestion == "check rank 1's log for why it had nothing to do, or request 1 device"


def test_a_rank_that_has_not_begun_yet_is_not_called_missing() -> None:
    script = told("ddp", 2)
    feed(script, steps([[8]] * 3))

    assert findings(script.make_report(final=False)) == {}


def test_a_group_that_is_smaller_than_the_job_is_named() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        feed(script, [joined(0, 1), *steps([[8]], [rank]), activity()], rank)
    finding = findings(final(script, 2))["fewer-processes"]

    assert finding.message.startswith("2 processes were started, but the script's process group has 1")


def test_devices_that_no_forward_has_used_are_named() -> None:
    script = told("single", 2)
    feed(script, [*steps([[8]] * 3), activity(3, 3)])
    finding = findings(final(script))["idle-devices"]

    assert finding.message == "2 devices were leased, but every forward that was observed ran on one of them"
    assert "ask for 1 device" in finding.suggestion


def test_processes_that_train_side_by_side_on_cores_leave_no_device_idle() -> None:
    """As under Hogwild: they join no group, so nothing says which of the devices each of them has."""
    script = told("single", 2)
    feed(script, [IDLE])
    for source in (1, 2):
        feed(script, [*steps([[8]] * 3), activity(3, 3)], source=source)

    assert "idle-devices" not in findings(final(script))


def test_data_parallel_without_gpus_is_told_to_rehearse() -> None:
    script = told("dp", 2)
    feed(script, [DATA_PARALLEL, *steps([[8]] * 3), activity(3, 3)])

    assert "program.rehearse" in findings(final(script))["idle-devices"].suggestion


# -- the same work twice, and ranks that drift apart -----------------------------------------------


def test_ddp_without_a_distributed_sampler_does_the_same_work_on_every_rank() -> None:
    script = told("ddp", 2)
    batches = [[32]] * 31 + [[11]]
    for rank in range(2):
        said = [joined(rank, 2), DDP, *steps(batches, [rank]), loaded(1003, 32, 1003), activity(32, 32)]
        feed(script, said, rank)
    found = findings(final(script, 2))

    assert set(found) == {"duplicated-work"}
    message = found["duplicated-work"].message
    assert message == "2 ranks went over the same rows: 2,006 rows were processed in one pass, 1,003 of them distinct"
    assert "DistributedSampler" in found["duplicated-work"].suggestion


SEEN = ((0, 10, 1), (1, 11, 2))


@pytest.mark.parametrize(
    ("contents", "severity"),
    [
        (SEEN, "warning"),
        (((0, 20, 3), (1, 21, 4)), None),  # a file of its own
        (((0, 20, 1), (1, 21, 2)), "info"),  # the same labels, and other images
        (((7, 20, 1), (8, 21, 2)), "info"),  # no row of both was seen
        ((), "info"),
    ],
)
def test_rows_of_the_same_numbers_are_the_same_work_if_they_hold_the_same(
    contents: tuple[tuple[int, ...], ...], severity: str | None
) -> None:
    script = told("ddp", 2)
    for rank in range(2):
        read = loaded(24, 8, 24, contents=contents if rank else SEEN)
        feed(script, [joined(rank, 2), DDP, *steps([[8]] * 3, [rank]), read, activity(3, 3)], rank)
    found = findings(final(script, 2))

    assert [finding.severity for finding in found.values()] == ([] if severity is None else [severity])
    assert set(found) <= {"duplicated-work"}


def test_loaders_that_only_one_rank_has_do_not_hide_the_same_work() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        checked = [loaded(50, 10, 50, trained=False, digest=9)] * (1 - rank)
        said = [joined(rank, 2), DDP, *steps([[8]] * 3, [rank]), *checked]
        feed(script, [*said, loaded(24, 8, 24, loader=1 - rank), activity(3, 3)], rank)

    assert set(findings(final(script, 2))) == {"duplicated-work"}


def test_two_identical_trainings_without_a_group_are_told_apart_from_that() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        feed(script, [*steps([[8]] * 3, [rank]), loaded(24, 8, 24), activity(3, 3)], rank)
    found = findings(final(script, 2))

    assert set(found) == {"duplicated-work"}
    assert found["duplicated-work"].message.startswith("2 processes without a process group trained side by side")
    assert "init_process_group()" in found["duplicated-work"].suggestion


def test_a_sharded_data_set_is_no_duplicated_work() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        said = [joined(rank, 2), DDP, *steps([[8]] * 3, [rank])]
        feed(script, [*said, loaded(24, 8, 48, shard=(rank, 2), digest=rank), activity(3, 3)], rank)

    assert findings(final(script, 2)) == {}


def test_evaluating_the_same_rows_on_every_rank_is_no_duplicated_work() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        said = [joined(rank, 2), DDP, *steps([[8]], [rank]), loaded(100, 10, 100, trained=False), activity()]
        feed(script, said, rank)

    assert findings(final(script, 2)) == {}


def test_a_model_that_is_never_wrapped_drifts_apart_over_sharded_data() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        said = [joined(rank, 2), *steps([[8]] * 3, [rank])]
        feed(script, [*said, loaded(24, 8, 48, shard=(rank, 2), digest=rank), activity(3, 3)], rank)
    found = findings(final(script, 2))

    assert set(found) == {"unsynchronised-ranks"}
    assert "2 ranks trained, each on a part of the data of its own" in found["unsynchronised-ranks"].message


def test_shards_made_by_hand_show_by_their_rows() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        said = [joined(rank, 2), *steps([[8]] * 3, [rank]), loaded(24, 8, 48, digest=rank), activity(3, 3)]
        feed(script, said, rank)

    assert set(findings(final(script, 2))) == {"unsynchronised-ranks"}


def test_ranks_that_share_one_models_tensors_need_the_same_rows_and_no_average() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        said = [Wrapped("parallelize_module", "Net"), *steps([[8]] * 3, [rank]), loaded(24, 8, 24), activity(3, 3)]
        feed(script, said, rank)

    assert findings(final(script, 2)) == {}


@pytest.mark.parametrize("reductions", [3, None])
def test_a_program_that_averages_by_itself_or_may_do_so_is_not_accused(reductions: int | None) -> None:
    script = told("ddp", 2)
    for rank in range(2):
        feed(script, [joined(rank, 2), *steps([[8]] * 3, [rank])], rank)
        feed(script, [loaded(24, 8, 48, shard=(rank, 2), digest=rank)], rank)
        if reductions is not None:
            feed(script, [activity(3, 3, reductions)], rank)

    assert findings(final(script, 2)) == {}


def test_parts_of_a_model_on_several_ranks_are_not_accused() -> None:
    """A pipeline's ranks share a group, send and receive, and load no shard."""
    script = told("ddp", 2)
    for rank in range(2):
        feed(script, [joined(rank, 2), *steps([[8]] * 3, [rank]), activity(3, 3)], rank)
    report = final(script, 2)

    assert findings(report) == {}
    assert report.notes["findings"] == (
        "2 ranks trained, and nothing that averages their gradients was seen: whether it should be could not be told, "
        "since no DataLoader was seen that all of them trained on"
    )


def test_whole_passes_over_parts_made_by_hand_show_by_their_rows() -> None:
    """A `Subset` has as many rows as are read of it."""
    script = told("ddp", 2)
    for rank in range(2):
        said = [joined(rank, 2), *steps([[8]] * 3, [rank]), loaded(24, 8, 24, digest=rank), activity(3, 3)]
        feed(script, said, rank)

    assert set(findings(final(script, 2))) == {"unsynchronised-ranks"}


def test_ranks_that_exchange_tensors_in_other_ways_are_not_accused_and_a_note_says_so() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        said = [joined(rank, 2), *steps([[8]] * 3, [rank]), loaded(24, 8, 24, digest=rank)]
        feed(script, [*said, Activity(3, 3, 3, 0, exchanges=3)], rank)
    report = final(script, 2)

    assert findings(report) == {}
    assert "they exchange tensors in other ways than by adding them up" in report.notes["findings"]


# -- how batches were divided ----------------------------------------------------------------------


def data_parallel(batches: list[list[int]], *more: object) -> dict[str, str]:
    """Code -> suggestion, for a script that divides batches so."""
    script = told("dp", len(batches[0]))
    feed(script, [DATA_PARALLEL, *steps(batches, range(len(batches[0]))), activity()])
    ranks(script, list(more))
    return {code: finding.suggestion for code, finding in findings(final(script)).items()}


def test_a_ragged_batch_is_told_which_batch_sizes_divide() -> None:
    found = data_parallel([[4, 4, 4, 4, 4, 4, 4, 2]] * 4, loaded(120, 30, 120))

    assert found["ragged-batch"] == "change batch_size in your DataLoader to 24 or 32"


def test_batch_sizes_that_leave_a_ragged_rest_are_not_suggested_without_dropping_it() -> None:
    found = data_parallel([[4, 4, 4, 4, 4, 4, 4, 2]] * 3 + [[2, 2, 2, 2, 2, 0, 0, 0]], loaded(100, 30, 100))

    assert found["ragged-batch"] == "change batch_size in your DataLoader to 24 or 32 and pass drop_last=True"
    assert found["idle-devices"] == "change batch_size in your DataLoader to 24 or 32 and pass drop_last=True"


def test_a_pass_that_was_not_seen_whole_leaves_only_full_batches_to_suggest() -> None:
    found = data_parallel([[4, 4, 4, 4, 4, 4, 4, 2]] * 4, loaded(120, 30, 5000, complete=False))

    assert found["ragged-batch"] == "change batch_size in your DataLoader to 24 or 32"


def test_batches_made_by_hand_are_not_blamed_on_a_loader() -> None:
    assert data_parallel([[4, 4, 2]])["ragged-batch"] == "make the model's batches of 9 or 12"


def test_the_last_batch_is_called_so_only_where_the_loader_shows_that_it_is() -> None:
    messages = []
    for passes in ([loaded(100, 30, 100)], []):
        script = told("dp", 3)
        feed(script, [DATA_PARALLEL, *steps([[10, 10, 10]] * 3 + [[4, 4, 2]], range(3)), *passes, activity(4, 4)])
        messages.append(findings(final(script))["ragged-last-batch"].message)

    assert messages[0].startswith("the last batch of 10 (the others have 30) does not divide")
    assert messages[1].startswith("a batch of 10 (the largest has 30) does not divide")


def test_a_last_batch_that_no_size_avoids_can_be_dropped() -> None:
    found = data_parallel([[10, 10, 10]] * 3 + [[4, 4, 2]], loaded(100, 30, 100))

    dropping = "pass drop_last=True to your DataLoader, which leaves 10 of 100 rows out of every pass"
    assert found["ragged-last-batch"] == dropping


def test_an_idle_end_of_an_even_batch_size_is_dropped_rather_than_all_batches_changed() -> None:
    found = data_parallel([[4, 4, 4, 4]] * 3 + [[1, 1, 0, 0]], loaded(50, 16, 50))

    dropping = "pass drop_last=True to your DataLoader, which leaves 2 of 50 rows out of every pass"
    assert found["idle-devices"] == dropping


def test_a_batch_smaller_than_the_devices_is_named() -> None:
    found = data_parallel([[1, 1, 0, 0]] * 3, loaded(6, 2, 6))

    assert "batch-smaller-than-devices" in found
    assert found["idle-devices"] == "change batch_size in your DataLoader to 4 and pass drop_last=True"


def test_micro_batches_are_judged_one_by_one() -> None:
    """Two forwards of 3, 3 and one of 2, 2 make a step of 8, 8, of which nothing is ragged."""
    assert "ragged-batch" not in data_parallel([[3, 3], [2, 2]])


def test_a_split_that_is_not_torch_s_gets_no_invented_batch_size() -> None:
    assert "no batch size can be worked out" in data_parallel([[2, 4]])["ragged-batch"]


def test_data_parallel_is_compared_with_a_process_for_each_device() -> None:
    found = data_parallel([[16, 16]])

    assert "batch 16 rows on each rank with a DistributedSampler" in found["ddp-would-fit-better"]


def test_a_forward_only_script_is_not_told_to_average_gradients() -> None:
    script = told("dp", 2)
    feed(script, [DATA_PARALLEL, *steps([[16, 16]], (0, 1), phase="forward"), activity(1, 0)])

    assert findings(final(script)) == {}


# -- among ranks -----------------------------------------------------------------------------------


def unequal(*, complete: bool) -> Report:
    script = told("ddp", 2)
    for rank in range(2):
        rows = 24 + 4 * rank
        said = [joined(rank, 2), DDP, *steps([[8]] * 3 + [[4 * rank]] * rank, [rank])]
        feed(script, [*said, *steps([[5 + rank]], [rank], first=4, first_id=9)], rank)
        feed(script, [loaded(rows, 8, 52, digest=rank, complete=complete), activity(4, 4)], rank)
    return final(script, 2)


def test_gradients_of_unequal_batches_are_averaged_as_equals() -> None:
    found = findings(unequal(complete=True))["uneven-mean-of-means"]

    assert "(5, 6)" in found.message
    assert found.suggestion == "pass drop_last=True to your DataLoader: every rank then has the same full batches"


def test_dropping_the_rest_is_suggested_only_where_it_is_known_to_help() -> None:
    assert findings(unequal(complete=False))["uneven-mean-of-means"].suggestion.startswith("weight each rank's loss")


def padded(sampler: str) -> Finding:
    script = told("ddp", 4)
    for rank in range(4):
        said = [joined(rank, 4), DDP, *steps([[23]], [rank])]
        read = replace(loaded(23, 30, 90, shard=(rank, 4), digest=rank), sampler=sampler)
        feed(script, [*said, read, activity()], rank)
    return findings(final(script, 4))["sampler-padding"]


def test_a_sampler_that_repeats_rows_is_told_by_its_numbers() -> None:
    finding = padded("DistributedSampler")
    assert finding.message == "4 ranks of 23 rows read 92 rows of 90: 2 are repeats, in every pass"
    assert finding.suggestion == (
        "pass drop_last=True to the DistributedSampler, which leaves 2 rows out of each pass, or ask for 3 devices"
    )


def test_nobody_is_told_to_change_a_sampler_that_is_not_there() -> None:
    suggestion = padded("SeedableRandomSampler").suggestion
    assert "DistributedSampler" not in suggestion
    assert "even_batches=False" in suggestion


@pytest.mark.parametrize(
    ("read", "batch_size", "rows", "left"),
    [(90, 30, 100, 10), (100, 30, 100, 0), (100, 25, 100, 0), (96, 32, 100, 4), (80, 20, 100, 0)],
)
def test_rows_that_are_dropped_in_every_pass_are_counted(read: int, batch_size: int, rows: int, left: int) -> None:
    script = told()
    feed(script, [*steps([[batch_size]] * 3), loaded(read, batch_size, rows), activity(3, 3)])
    found = findings(final(script))

    assert [finding.message for finding in found.values()] == (
        [f"drop_last leaves {left} of {rows} rows out of every pass"] if left else []
    )


def test_rows_that_a_sampler_drops_are_counted_over_all_ranks() -> None:
    script = told("ddp", 3)
    for rank in range(3):
        said = [joined(rank, 3), DDP, *steps([[11]] * 3, [rank])]
        feed(script, [*said, loaded(33, 11, 100, shard=(rank, 3), digest=rank), activity(3, 3)], rank)

    assert findings(final(script, 3))["dropped-rows"].message == (
        "drop_last leaves 1 of 100 rows out of every pass over 3 ranks"
    )


# -- groups and steps that never came back --------------------------------------------------------------------


def test_a_rank_that_never_returned_from_a_step_is_named() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        feed(script, [joined(rank, 2), DDP], rank)
        for record in steps([[8]] * 3, [rank]):
            feed(script, [began(record.step, 0.0), record] if isinstance(record, Step) else [record], rank)
    feed(script, [began(3, 100.0)], rank=1)
    script.rank_ended(0)
    script.rank_ended(1)
    finding = findings(script.make_report(final=True, now=3700.0))["unfinished-step"]

    assert finding.message == (
        "rank 1 had started step 3 (train) but not finished it when it ended, 3,600 s later; rank 0 had not started it"
    )
    assert "in the log of rank 0" in finding.suggestion


def test_a_rank_that_waits_for_its_process_group_to_the_end_is_named() -> None:
    script = told("ddp", 2)
    feed(script, [Joining(100.0)])
    script.rank_ended(0)
    script.rank_ended(1)
    found = findings(script.make_report(final=True, now=160.0))

    assert found["unmade-group"].message == (
        "rank 0 waited 60 s in init_process_group() until the end; rank 1 never called it"
    )


def test_a_process_group_that_was_made_in_the_end_is_nothing() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        feed(script, [Joining(100.0), joined(rank, 2)], rank)
        script.rank_ended(rank)

    assert "unmade-group" not in findings(script.make_report(final=True, now=160.0))


def test_ranks_that_wait_in_the_same_step_are_named_together() -> None:
    script = told("ddp", 3)
    for rank in range(2):
        feed(script, [joined(rank, 3), DDP, began(0, 100.0 + rank)], rank)
    feed(script, [Outcome(2, 0)], rank=2)
    for rank in range(3):
        script.rank_ended(rank)
    found = findings(script.make_report(final=True, now=200.0))

    assert found["unfinished-step"].message == (
        "ranks 0, 1 had started step 0 (train) but not finished it when they ended, 100 s later"
    )
    assert found["fewer-processes"].message.endswith("rank 2 ran no forward and no step")


def test_a_step_that_was_cut_off_in_the_middle_is_a_note_and_no_finding() -> None:
    script = told()
    feed(script, [*steps([[8]] * 3), began(3, 100.0)])
    script.rank_ended(0)
    report = script.make_report(final=True, now=100.4)

    assert "unfinished-step" not in findings(report)
    assert (
        report.notes["patterns.steps"]
        == "rank 0 had started step 3 (train) but not finished it when it ended, 0 s later"
    )


@pytest.mark.parametrize(("seconds", "found"), [(70.0, False), (100.0, True)])
def test_a_step_among_slow_ones_is_unfinished_if_it_lasted_far_longer(seconds: float, found: bool) -> None:
    script = told()
    feed(script, [began(0, 100.0), *steps([[8]], at=130.0), began(1, 130.0)])
    script.rank_ended(0)

    assert ("unfinished-step" in findings(script.make_report(final=True, now=130.0 + seconds))) is found


def test_what_a_rank_left_open_when_it_ended_well_is_nothing() -> None:
    script = told()
    feed(script, [*steps([[8]] * 3), began(3, 100.0), activity(3, 3)])
    feed(script, [*steps([[8]]), began(1, 100.0)], source=1)
    report = final(script, now=5000.0)

    assert "unfinished-step" not in findings(report)
    assert "patterns.steps" not in report.notes


def test_a_forward_that_turned_out_to_be_training_is_finished_by_its_step() -> None:
    script = told()
    feed(script, [began(0, 0.0, "forward"), *steps([[7]])])
    script.rank_ended(0)
    report = script.make_report(final=True, now=200.0)

    assert findings(report) == {}
    assert "patterns.steps" not in report.notes


def test_a_rank_that_hangs_in_its_very_first_forward_is_named() -> None:
    script = told()
    feed(script, [began(0, 100.0)])
    script.rank_ended(0)
    finding = findings(script.make_report(final=True, now=200.0))["unfinished-step"]

    assert "rank 0 had started step 0 (train)" in finding.message
