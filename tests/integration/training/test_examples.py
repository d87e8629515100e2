"""Every ready spec of examples/jobs: it can be submitted, it runs, and it splits as it was planned to."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import jobs
from jobs.model import catalogue
from jobs.model.spec import JobSpec
from jobs.model.spec_rules import parse_spec
from jobs.splits.plan import predict_splits
from shardyard.contract.report import Report
from tests.integration.training.ranks import report_of, run_ranks
from tests.support.samples.cifar_files import make_small_cifar
from tests.support.training_runs import report_here

pytestmark = [
    pytest.mark.integration,
    # Advice of torch's that depends on the machine: the tutorial's four workers are more than two cores have.
    pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes"),
]

DIRECTORY = Path(jobs.__file__).parents[1] / "examples" / "jobs"
EXAMPLES = sorted(path.stem for path in DIRECTORY.glob("*.json"))

#: The splits that the tutorials print: rows of each device, step by step. What a device got nothing of is 0.
PRINTED: dict[str, Sequence[tuple[int, ...]]] = {
    "rows-on-1-device": [(30,)] * 3 + [(10,)],
    "rows-on-2-devices": [(15, 15)] * 3 + [(5, 5)],
    "rows-on-3-devices": [(10, 10, 10)] * 3 + [(4, 4, 2)],
    "rows-on-8-devices": [(4, 4, 4, 4, 4, 4, 4, 2)] * 3 + [(2, 2, 2, 2, 2, 0, 0, 0)],
    "thirty-rows-on-2-devices": [(15, 15)],
    "output-on-device-1": [(10, 10, 10)] * 3 + [(4, 4, 2)],
    "wrapped-block": [(15, 15)] * 3 + [(5, 5)],
    "functional-dp": [(10, 10, 10)] * 3 + [(4, 4, 2)],
    "embedding-on-cpu": [(30,)] * 3 + [(10,)],
    "rows-on-4-ranks": [(23, 23, 23, 23)],
}


def submitted(name: str) -> JobSpec:
    spec = parse_spec((DIRECTORY / f"{name}.json").read_bytes())
    assert catalogue.check(spec) == []
    return spec


def shortened(spec: JobSpec) -> JobSpec:
    """Two epochs at most, and sleeps that do not last."""
    body: dict[str, Any] = spec.model_dump(mode="json", exclude_unset=True)
    body["program"]["epochs"] = min(spec.recipe.epochs, 2)
    if spec.recipe.straggler is not None:
        body["program"]["straggler"]["milliseconds"] = 20
    return parse_spec(json.dumps(body))


@pytest.fixture(scope="module")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    make_small_cifar(root / "cifar-10", rows=60)
    return root


def run(spec: JobSpec, data_root: Path) -> Report:
    rows = catalogue.dataset_rows(spec.recipe.data)
    if spec.world_size == 1:
        return report_here(spec, rows, data_root=data_root)
    runs = run_ranks(spec, data_root=data_root)
    assert [one.exit_code for one in runs] == [0] * spec.world_size, runs[0].records[-1]
    return report_of(spec, runs, rows)


def test_the_examples_are_those_that_the_tutorials_call_for() -> None:
    assert PRINTED.keys() < set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_can_be_submitted_and_planned(name: str) -> None:
    spec = submitted(name)
    assert spec.name == name
    prediction = predict_splits(spec, catalogue.dataset_rows(spec.recipe.data))
    assert prediction.epoch
    assert ("rows" in prediction.notes) == (spec.recipe.data.ref == "cifar10")


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_splits_as_planned(name: str, data_root: Path) -> None:
    report = run(shortened(submitted(name)), data_root)
    assert report.prediction.differences == []
    assert report.prediction.matches
    if name in PRINTED:
        counts = {pattern.rows: pattern.steps for pattern in report.patterns}
        assert counts == {rows: PRINTED[name].count(rows) for rows in PRINTED[name]}


def test_a_wrapped_block_alone_is_split(data_root: Path) -> None:
    report = run(submitted("wrapped-block"), data_root)
    assert {pattern.module for pattern in report.patterns} == {"block2"}


def test_functional_dp_times_each_primitive(data_root: Path) -> None:
    report = run(submitted("functional-dp"), data_root)
    assert report.primitives is not None
    assert min(getattr(report.primitives, name).total for name in report.primitives.__struct_fields__) > 0


def test_a_split_along_another_dimension_counts_positions_and_keeps_all_rows(data_root: Path) -> None:
    (pattern,) = run(submitted("split-along-dim-1"), data_root).patterns
    assert (pattern.batch_rows, pattern.rows, pattern.steps) == (12, (4, 4, 4), 8)
    assert pattern.input_shapes == ((30, 4, 5),) * 3
    assert pattern.shapes_vary  # the last batch of an epoch has ten rows


def test_cifar10_is_trained_and_tested_in_batches_of_128(data_root: Path) -> None:
    report = run(shortened(submitted("cifar10-cnn")), data_root)
    sizes = {(pattern.phase, pattern.batch_rows, pattern.steps) for pattern in report.patterns}
    assert sizes == {("train", 128, 4), ("train", 44, 2), ("eval", 60, 2)}


def test_the_planted_straggler_is_found(data_root: Path) -> None:
    balance = run(shortened(submitted("straggler-on-rank-1")), data_root).balance
    assert (balance.slowest_device, balance.cause) == (1, "input")


def test_side_by_side_dp_and_ddp_read_the_same_rows_in_as_many_steps(data_root: Path) -> None:
    dp, ddp = (run(shortened(submitted(f"side-by-side-{how}")), data_root) for how in ("dp", "ddp"))
    steps = [sum(p.steps or 0 for p in report.patterns if p.phase == "train") for report in (dp, ddp)]
    assert steps[0] == steps[1] == 46
    assert dp.primitives is not None
    assert ddp.primitives is None
    assert "waiting for the slowest shard" in dp.notes["per_device.comm_ms"]
    assert "waiting for the slowest rank" in ddp.notes["per_device.comm_ms"]
    for report in (dp, ddp):
        assert all(one.comm_ms is not None for one in report.per_device)
        assert report.balance.output_device_memory_skew is None
        assert report.notes["balance.output_device_memory_skew"]
