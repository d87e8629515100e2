"""What a script's report says about gradients: each case as its records come."""

from typing import Any

import pytest

from jobs.protocol.packets import AnyRecord
from jobs.protocol.probe_records import GradientSync, LossForm, NormLayers, ParameterSearch
from jobs.protocol.records import Outcome
from shardyard.contract.report import Report
from tests.support.samples.script_streams import DDP, activity, end, feed, findings, joined, steps, told


def sync(**counts: Any) -> GradientSync:
    fields = {"unsynchronised": 0, "first_unsynchronised": None, "repeated": 0, "reductions": 0}
    sizes = {"gradient_bytes": 2**20, "trained_numbers": 2**18, "exchanged": 0}
    return GradientSync(number=0, inside="Net", **(fields | sizes | counts))


def report(*records: AnyRecord, ranks: int = 2, count: int = 10, final: bool = True, rows: int = 16) -> Report:
    """Of ranks that all have sent the same."""
    script = told("ddp", ranks)
    for rank in range(ranks):
        feed(
            script, [joined(rank, ranks), DDP, *steps([[rows]] * count, [rank]), *records, activity(count, count)], rank
        )
    if final:
        end(script, ranks)
    return script.make_report(final=final)


# -- synchronisation -------------------------------------------------------------------------------


def test_steps_without_synchronisation_are_named_with_the_first() -> None:
    finding = findings(report(sync(unsynchronised=3, first_unsynchronised=2)))["unsynchronised-last-micro-batch"]

    assert finding.severity == "warning"
    assert finding.message.startswith("in 3 of 10 steps, first in step 2, the last forward and backward before the")
    assert "each of 2 ranks updated Net with gradients of its own" in finding.message
    assert "outside no_sync()" in finding.suggestion


def test_a_run_that_has_never_synchronised_may_still_average_its_parameters() -> None:
    never = sync(unsynchronised=10, first_unsynchronised=0)

    assert findings(report(never, final=False)) == {}
    assert set(findings(report(never))) == {"unsynchronised-last-micro-batch"}
    some = sync(unsynchronised=2, first_unsynchronised=4)
    assert set(findings(report(some, final=False))) == {"unsynchronised-last-micro-batch"}


def test_a_program_that_exchanges_its_whole_model_gets_a_note_instead() -> None:
    made = report(sync(unsynchronised=3, first_unsynchronised=2, exchanged=2**18))

    assert findings(made) == {}
    assert "the gradients of Net were not synchronised in 3 steps" in made.notes["findings"]


def test_reductions_of_no_use_have_their_bytes() -> None:
    finding = findings(report(sync(repeated=10, reductions=40)))["reduces-every-micro-batch"]

    assert finding.severity == "info"
    assert "30 of 40 reductions were of no use, 30 MiB on every rank" in finding.message
    assert not finding.cost_device_seconds
    assert findings(report(sync(repeated=2, reductions=8))) == {}


# -- means of means --------------------------------------------------------------------------------


def unequal(*forms: LossForm) -> Report:
    script = told("ddp", 2)
    for rank in range(2):
        said: list[AnyRecord] = [joined(rank, 2), DDP, *steps([[8], [8], [6 - 2 * rank]], [rank]), *forms]
        feed(script, [*said, activity(3, 3)], rank)
    end(script, 2)
    return script.make_report(final=True)


def mean(rows: int, *factors: float, kind: str = "mean") -> LossForm:
    return LossForm(rows, kind, factors, 0)


@pytest.mark.parametrize("forms", [(), (mean(8, 1.0), mean(6, 1.0), mean(4, 1.0)), (mean(8, 0.25), mean(4, 0.25))])
def test_means_over_unequal_rows_are_found(forms: tuple[LossForm, ...]) -> None:
    finding = findings(unequal(*forms))["uneven-mean-of-means"]

    assert "(6, 4)" in finding.message
    assert "weighs 1.5 times one on the largest, and 10% of the gradient's weight is on the wrong" in finding.message
    assert finding.numbers["weight_ratio"] == 1.5


@pytest.mark.parametrize(
    "forms",
    [
        (mean(8, 1.0, kind="sum"), mean(4, 1.0, kind="sum")),
        (mean(8, 1.0), mean(6, 1.2), mean(4, 0.8)),
        (mean(8, kind="unknown"),),
    ],
)
def test_losses_that_are_weighted_or_unknown_get_a_note_instead(forms: tuple[LossForm, ...]) -> None:
    made = unequal(*forms)

    assert findings(made) == {}
    assert "could not be told, since the losses are not the plain means" in made.notes["findings"]


# -- BatchNorm, and unused parameters --------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "ranks", "expected"), [(8, 2, True), (4, 4, True), (4, 2, False), (9, 2, False), (16, 2, False)]
)
def test_statistics_of_few_rows_are_found_where_the_batch_has_more(rows: int, ranks: int, expected: bool) -> None:
    found = findings(report(NormLayers("", "Net", 3), rows=rows, ranks=ranks))
    assert ("batchnorm-small-shard" in found) is expected


def test_ranks_that_share_no_model_have_no_common_batch_to_take_statistics_from() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        said = [joined(rank, 2), NormLayers("", "Net", 3), *steps([[8]] * 10, [rank])]
        feed(script, [*said, activity(10, 10)], rank)
    end(script, 2)
    assert "batchnorm-small-shard" not in findings(script.make_report(final=True))


def test_a_rank_that_failed_on_a_single_row_is_named() -> None:
    said = "Expected more than 1 value per channel when training, got input size torch.Size([1, 64])"
    script = told("ddp", 2)
    for rank in range(2):
        feed(script, [joined(rank, 2), DDP, *steps([[16]] * 3, [rank])], rank)
    script.add_record(1, Outcome(1, 1, "code_error", f"ValueError: {said}", f"Traceback ...\nValueError: {said}"))
    finding = findings(script.make_report(final=True))["one-row-shard"]

    assert finding.message.startswith("in training step 3 rank 1 got exactly one row")
    assert finding.numbers == {"step": 3, "rows": 1}


def test_other_failures_of_batch_norm_are_no_single_row() -> None:
    script = told()
    feed(script, [*steps([[16]] * 3), Outcome(0, 1, "code_error", "ValueError: expected 4D input (got 3D input)")])
    assert "one-row-shard" not in findings(script.make_report(final=True))


@pytest.mark.parametrize(
    ("looks", "reductions", "needed", "expected"),
    [(12, 140, False, True), (7, 140, False, False), (12, 99, False, False), (12, 140, True, False)],
)
def test_a_search_is_called_unneeded_only_after_many_looks(
    looks: int, reductions: int, needed: bool, expected: bool
) -> None:
    found = findings(report(ParameterSearch(0, "Net", looks, reductions, needed)))
    assert ("unused-search-unneeded" in found) is expected


def test_a_search_that_another_rank_needs_is_right() -> None:
    script = told("ddp", 2)
    for rank in range(2):
        search = ParameterSearch(0, "Net", 20, 200, bool(rank))
        feed(script, [joined(rank, 2), DDP, *steps([[16]] * 3, [rank]), search, activity(3, 3)], rank)
    end(script, 2)
    assert findings(script.make_report(final=True)) == {}
