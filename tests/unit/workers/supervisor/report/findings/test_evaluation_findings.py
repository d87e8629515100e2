"""What a script's report says about its evaluation: each case as its records come, and its twin."""

from typing import Any

import msgspec
import pytest

from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import Wrapped
from jobs.protocol.records import Outcome, ProgramBegan, Step
from shardyard.contract.report import Finding, Report
from tests.support.samples.script_streams import DDP, activity, feed, findings, joined, loaded, steps, told
from workers.supervisor.report.script_aggregator import ScriptAggregator

ENDED = 100.0


def evaluated(rows: int, dataset_rows: int, **seen: Any) -> AnyRecord:
    """A whole pass without training, with a forward for each batch of ten."""
    batches = -(-rows // 10)
    return loaded(rows, 10, dataset_rows, **{"trained": False, "forwards": batches, "seconds": 4.0} | seen)


def padded(rank: int, rows: int = 101, ranks: int = 2, **seen: Any) -> AnyRecord:
    """A pass over what a DistributedSampler gives a rank."""
    part = {"shard": (rank, ranks), "digest": rank, "shuffles": False, "sampler_number": 0}
    return evaluated(-(-rows // ranks), rows, **part | seen)


def end(script: ScriptAggregator, ranks: int) -> None:
    for rank in range(ranks):
        script.add_record(rank, Outcome(rank, 0, at=ENDED))
        script.rank_ended(rank)


def reported(passes: list[list[AnyRecord]], *, gathers: int = 0, sums: int = 2, final: bool = True) -> Report:
    """Of ranks under DDP, each of which has evaluated so."""
    script = told("ddp", len(passes))
    for rank, read in enumerate(passes):
        begun = [ProgramBegan(0.0), joined(rank, len(passes)), DDP, *steps([[8]] * 6, [rank])]
        counts = msgspec.structs.replace(activity(6, 6), gathers=gathers, evaluation_sums=sums)
        feed(script, [*begun, *read, counts], rank)
    if final:
        end(script, len(passes))
    return script.make_report(final=final, now=ENDED)


def found(passes: list[list[AnyRecord]], **how: Any) -> dict[str, Finding]:
    return findings(reported(passes, **how))


# -- rows that count twice -------------------------------------------------------------------------


def test_rows_that_a_sampler_repeats_count_twice_in_an_evaluation() -> None:
    twice = found([[padded(rank, 102, 4)] for rank in range(4)])

    assert set(twice) == {"evaluation-counts-twice"}
    finding = twice["evaluation-counts-twice"]
    assert finding.severity == "warning"
    assert finding.message == (
        "4 ranks evaluate 26 rows each, and the data set has 102: 2 rows count twice in what the ranks add up"
    )
    assert finding.suggestion.startswith("evaluate Subset(dataset, range(rank, len(dataset), world_size))")
    assert finding.numbers == {"rows": 102, "rows_twice": 2, "ranks": 4}


@pytest.mark.parametrize(
    "seen",
    [
        {"rows": 100},  # it divides evenly
        {"forwards": 0},  # statistics of the data
        {"complete": False},
        {"sampler_number": None, "shuffles": None},  # a sampler of the script's own
        {"shard": None, "digest": None},
    ],
)
def test_other_passes_without_training_count_no_row_twice(seen: dict[str, Any]) -> None:
    assert found([[padded(rank, **seen)] for rank in range(2)]) == {}


def test_outputs_that_are_brought_together_may_be_cut_off_and_a_note_says_so() -> None:
    report = reported([[padded(rank)] for rank in range(2)], gathers=3)

    assert findings(report) == {}
    assert "of 101 rows that were evaluated 1 was read twice" in report.notes["findings"]


def test_ranks_that_add_nothing_up_have_a_metric_each() -> None:
    assert found([[padded(rank)] for rank in range(2)], sums=0) == {}


def test_it_is_told_at_the_end_when_all_that_the_script_calls_is_known() -> None:
    assert found([[padded(rank)] for rank in range(2)], final=False) == {}


# -- the same evaluation on every rank -------------------------------------------------------------


def test_ranks_that_evaluate_the_same_rows_could_share_them() -> None:
    passes = [[evaluated(100, 100, number=number) for number in range(3)] for _ in range(4)]
    same = found(passes)

    assert set(same) == {"evaluation-on-every-rank"}
    finding = same["evaluation-on-every-rank"]
    assert finding.severity == "info"
    assert finding.message == (
        "each of 4 ranks evaluates the same 100 rows, all that the data set has: 48 device-seconds so far, of which 12 "
        "would do"
    )
    assert (finding.cost_device_seconds, finding.cost_share) == (36.0, 0.09)
    assert finding.numbers == {"ranks": 4, "rows": 100, "seconds": 48}


def test_an_evaluation_that_costs_much_is_a_warning() -> None:
    slow = found([[evaluated(100, 100, seconds=30.0)] for _ in range(2)])["evaluation-on-every-rank"]

    assert (slow.severity, slow.cost_share) == ("warning", 0.15)


@pytest.mark.parametrize(
    "other",
    [
        {"digest": 7},  # a part of its own
        {"contents": ((0, 20, 1), (1, 21, 2))},  # a file of its own
        {"contents": ()},  # that is not known
        {"complete": False},
        {"forwards": 0},
    ],
)
def test_ranks_that_evaluate_other_rows_or_none_do_not_repeat_each_other(other: dict[str, Any]) -> None:
    assert found([[evaluated(100, 100)], [evaluated(100, 100, **other)]]) == {}


def test_an_evaluation_of_a_single_batch_cannot_be_shared() -> None:
    assert found([[evaluated(10, 10)] for _ in range(2)]) == {}


def test_ranks_without_a_common_model_are_not_compared() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        tensors = Wrapped("parallelize_module", "Net")
        said = [joined(rank, 2), tensors, *steps([[8]] * 6, [rank]), evaluated(100, 100), activity(6, 6)]
        feed(script, said, rank)
    end(script, 2)

    assert findings(script.make_report(final=True, now=ENDED)) == {}


# -- ranks that wait for the evaluation of one -----------------------------------------------------


def lonely(began_at: float, seconds: float, *, data_wait_ms: float = 0.0) -> ScriptAggregator:
    """Three ranks, of which one evaluates from a moment on, while the others end no step from 10 s to 30 s."""
    script = told("ddp", 3)
    for rank in range(3):
        feed(script, [ProgramBegan(0.0), joined(rank, 3), DDP], rank)
        *before, last = steps([[8]] * 6, [rank])
        assert isinstance(last, Step)
        paused = msgspec.structs.replace(last, at=30.0, cycle_ms=20_000.0, data_wait_ms=data_wait_ms)
        alone = [evaluated(100, 100, began_at=began_at, seconds=seconds)] if rank == 1 else []
        feed(script, [*before, *alone, last if rank == 1 else paused, activity(6, 6)], rank)
    end(script, 3)
    return script


def test_ranks_that_wait_while_one_evaluates_are_named_with_their_time() -> None:
    waited = findings(lonely(11.0, 18.5).make_report(final=True, now=ENDED))

    assert set(waited) == {"evaluation-on-one-rank"}
    finding = waited["evaluation-on-one-rank"]
    assert finding.message == "rank 1 evaluates alone, and ranks 0, 2 waited 18.5 s each for it"
    assert (finding.severity, finding.cost_device_seconds, finding.cost_share) == ("warning", 37.0, 0.1233)
    assert finding.numbers == {"rank": 1, "waited_seconds": 18.5}


@pytest.mark.parametrize(
    ("began_at", "seconds", "data_wait_ms"),
    [
        (11.0, 7.0, 0.0),  # the pause has other reasons
        (40.0, 20.0, 0.0),  # it was at another time
        (11.0, 18.5, 19_000.0),  # each waited for its own input
    ],
)
def test_pauses_that_no_evaluation_fills_have_other_reasons(
    began_at: float, seconds: float, data_wait_ms: float
) -> None:
    script = lonely(began_at, seconds, data_wait_ms=data_wait_ms)

    assert findings(script.make_report(final=True, now=ENDED)) == {}
