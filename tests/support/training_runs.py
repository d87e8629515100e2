"""Runs a spec in this process, as one rank with virtual devices, and keeps what it sent."""

import json
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jobs.model.spec import JobSpec
from jobs.model.spec_rules import parse_spec
from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import Outcome, Record, Result
from jobs.splits.plan import predict_splits
from shardyard.contract.report import Report
from workers.runtime.context import RankContext, RankDevice
from workers.supervisor.report.leased_devices import LeasedDevice
from workers.supervisor.report.recipe_aggregator import RecipeAggregator
from workers.training import entry

T = TypeVar("T", bound=Record)

VECTORS: dict[str, Any] = {
    "model": {"ref": "linear", "args": {"in_features": 5, "out_features": 2}},
    "data": {"ref": "random_vectors", "args": {"rows": 100, "features": 5}, "batch_size": 30},
    "loss": {"ref": "cross_entropy"},
    "optimizer": {"ref": "sgd", "args": {"lr": 0.1}},
}
FORWARD: dict[str, Any] = {"model": VECTORS["model"], "data": VECTORS["data"], "mode": "forward"}
DIGITS: dict[str, Any] = {
    "model": {"ref": "mlp"},
    "data": {"ref": "digits", "batch_size": 32, "shuffle": True},
    "loss": {"ref": "cross_entropy"},
    "optimizer": {"ref": "adam", "args": {"lr": 0.003}},
    "epochs": 12,
    "evaluate": {"data": {"ref": "digits", "args": {"split": "test"}}, "every_epochs": 12},
}


@dataclass
class Kept:
    """A sink that keeps everything."""

    records: list[AnyRecord] = field(default_factory=list)

    def emit(self, record: AnyRecord) -> None:
        self.records.append(record)

    def of(self, kind: type[T]) -> list[T]:
        return [record for record in self.records if isinstance(record, kind)]


def spec_of(program: dict[str, Any], *, devices: int = 1, **parallelism: Any) -> JobSpec:
    return parse_spec(json.dumps({"program": program, "resources": {"devices": devices}, "parallelism": parallelism}))


def run_here(program: dict[str, Any], *, devices: int = 1, **parallelism: Any) -> tuple[Result, Kept]:
    return run_spec(spec_of(program, devices=devices, **parallelism))


def run_spec(spec: JobSpec, **options: Any) -> tuple[Result, Kept]:
    sink = Kept()
    return entry.run_recipe(spec, context_of(spec.resources.devices, sink, **options)), sink


def report_here(spec: JobSpec, train_rows: int | None = None, **options: Any) -> Report:
    """Run a spec of one process, and report on it as the service does."""
    _, sink = run_spec(spec, **options)
    lease = [LeasedDevice(index, f"cpu:{index}", "here", "cpu", "virtual") for index in range(spec.resources.devices)]
    told = RecipeAggregator("job", 1, spec, lease, predict_splits(spec, train_rows))
    for record in (*sink.records, Outcome(0, 0)):
        told.add_record(0, record)
    return told.make_report(final=True)


def context_of(devices: int, sink: Kept, **options: Any) -> RankContext:
    owned = tuple(RankDevice(index, "cpu", f"cpu:{index}") for index in range(devices))
    return RankContext(0, 1, owned, devices, 1, sink, **options)
