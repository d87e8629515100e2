"""What a recipe tells of its model's BatchNorm layers, and what the report makes of it."""

from typing import Any

import pytest
import torch
from torch import nn

from jobs.protocol.probe_records import NormLayers
from jobs.splits.plan import predict_splits
from shardyard.contract.report import Finding
from tests.support.samples.record_streams import lease
from tests.support.training_runs import VECTORS, Kept, context_of, spec_of
from workers.supervisor.report.recipe_aggregator import RecipeAggregator
from workers.training import entry


class Normalised(nn.Module):
    """BatchNorm over vectors, or over the pixels of a picture made of them."""

    def __init__(self, kind: str = "flat") -> None:
        super().__init__()
        layers = {"flat": nn.BatchNorm1d(8), "wide": nn.BatchNorm2d(2), "group": nn.GroupNorm(2, 8)}
        self.first, self.norm, self.last = nn.Linear(5, 8), layers[kind], nn.Linear(8, 2)
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        hidden = self.first(x)
        if self.kind == "wide":
            hidden = self.norm(hidden.view(-1, 2, 2, 2)).flatten(1)
        else:
            hidden = self.norm(hidden)
        return self.last(hidden)


def run(kind: str, rows: int, size: int) -> tuple[Kept, dict[str, Finding], BaseException | None]:
    """On three devices under dp; the findings are those of the moment when it has ended, or failed."""
    data = {"ref": "random_vectors", "args": {"rows": rows, "features": 5}, "batch_size": size}
    model = {"ref": "tests.unit.workers.training.test_norm_layers:Normalised", "args": {"kind": kind}}
    spec = spec_of(VECTORS | {"data": data, "model": model}, devices=3, strategy="dp")
    sink, failed = Kept(), None
    try:
        entry.run_recipe(spec, context_of(3, sink))
    except ValueError as error:
        failed = error
    report = RecipeAggregator("job", 1, spec, lease(3), predict_splits(spec, rows))
    for record in sink.records:
        report.add_record(0, record)
    return sink, {one.code: one for one in report.make_report(final=False).findings}, failed


def test_a_single_row_on_a_device_is_announced_before_its_step_fails() -> None:
    sink, found, failed = run("flat", 97, 30)

    assert [norms.values_per_row for norms in sink.of(NormLayers)] == [None, 1]
    assert "in step 3 device 2 gets exactly one row (3, 3, 1)" in found["one-row-shard"].message
    assert "Expected more than 1 value per channel" in str(failed)


@pytest.mark.parametrize(("kind", "rows"), [("wide", 97), ("group", 97), ("flat", 99)])
def test_layers_that_have_enough_values_are_right(kind: str, rows: int) -> None:
    _, found, failed = run(kind, rows, 30)

    assert failed is None
    assert not {"one-row-shard", "batchnorm-small-shard"} & set(found)


def test_statistics_of_few_rows_are_found_in_a_recipe() -> None:
    _, found, _ = run("wide", 48, 24)
    assert "from 8 of the 24 of a batch" in found["batchnorm-small-shard"].message
    assert "batchnorm-small-shard" not in run("group", 48, 24)[1]
