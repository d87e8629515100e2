"""What a split means for BatchNorm: devices with a single row, and statistics of few rows."""

import pytest

from jobs.splits.lint import lint_splits
from jobs.splits.norm_problems import NormFacts
from jobs.splits.plan import predict_splits
from shardyard.contract.report import Finding
from tests.support.samples.specs import make_spec

FLAT = NormFacts("Net", 2, values_per_row=1)
WIDE = NormFacts("Net", 2, values_per_row=49)


def planned(
    strategy: str, devices: int, size: int, rows: int, norms: NormFacts, **program: object
) -> dict[str, Finding]:
    spec = make_spec(strategy, devices, size, **program)  # type: ignore[arg-type]
    found = lint_splits(spec, predict_splits(spec, rows).epoch, rows, norms)
    return {finding.code: finding for finding in found if finding.code in ("one-row-shard", "batchnorm-small-shard")}


def test_a_device_that_gets_one_row_of_the_last_batch_is_named_with_its_step() -> None:
    finding = planned("dp", 3, 30, 97, FLAT)["one-row-shard"]

    assert "in step 3 device 2 gets exactly one row (3, 3, 1)" in finding.message
    assert finding.suggestion == "set program.data.drop_last to true, which leaves 7 of 97 rows out of every epoch"
    assert finding.numbers == {"device": 2, "rows": 1, "step": 3}


def test_a_last_batch_of_one_row_is_found_on_one_device_and_on_ranks() -> None:
    assert "the batch has exactly one row" in planned("single", 1, 16, 33, FLAT)["one-row-shard"].message
    assert "(1, 1)" in planned("ddp", 2, 16, 66, FLAT)["one-row-shard"].message


def test_micro_batches_count_one_by_one() -> None:
    finding = planned("single", 1, 16, 33, FLAT, accumulate_steps=2)["one-row-shard"]

    assert "in step 1 " in finding.message


def test_a_step_that_the_run_does_not_reach_is_no_problem() -> None:
    assert planned("dp", 3, 30, 97, FLAT, max_steps=3) == {}
    assert set(planned("dp", 3, 30, 97, FLAT, max_steps=4)) == {"one-row-shard"}


@pytest.mark.parametrize(
    ("strategy", "devices", "size", "rows", "norms"),
    [
        ("dp", 3, 30, 97, WIDE),
        ("dp", 3, 30, 97, NormFacts("Net", 2)),
        ("dp", 3, 30, 100, FLAT),
        ("ddp", 2, 16, 64, FLAT),
    ],
)
def test_layers_that_can_train_on_their_rows_have_no_finding(
    strategy: str, devices: int, size: int, rows: int, norms: NormFacts
) -> None:
    assert planned(strategy, devices, size, rows, norms) == {}


def test_statistics_of_few_rows_on_each_device_are_named() -> None:
    finding = planned("ddp", 4, 8, 256, WIDE)["batchnorm-small-shard"]

    assert finding.severity == "warning"
    assert "from 8 of the 32 of a batch (8, 8, 8, 8)" in finding.message
    assert "program.data.batch_size" in finding.suggestion
    assert finding.numbers == {"layers": 2, "rows_per_device": 8, "batch_rows": 32, "devices": 4}


@pytest.mark.parametrize(
    ("strategy", "devices", "size"), [("single", 1, 8), ("ddp", 2, 4), ("ddp", 4, 9), ("dp", 2, 18)]
)
def test_batches_that_are_small_themselves_or_enough_rows_have_none(strategy: str, devices: int, size: int) -> None:
    assert "batchnorm-small-shard" not in planned(strategy, devices, size, 360, WIDE)
