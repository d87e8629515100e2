"""Runs a spec in this process with checkpoints, under a supervisor that answers as the service's does, and kills it."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from jobs.model.spec import JobSpec
from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import BatchSplit, MetricSample, Outcome, Paused, Result, Saved, Step
from jobs.splits.plan import predict_splits
from shardyard.contract.report import Report
from tests.support.training_runs import Kept, context_of, spec_of
from workers.runtime.commands import CONTINUE
from workers.runtime.context import CheckpointAccess, StopTraining
from workers.supervisor.report.leased_devices import LeasedDevice
from workers.supervisor.report.recipe_aggregator import RecipeAggregator
from workers.training import entry


class Killed(BaseException):
    """Here the process is gone."""


@dataclass
class Dying(Kept):
    """A sink under which the process dies once it has sent what is looked for."""

    dies: Callable[[AnyRecord], bool] = lambda record: False

    def emit(self, record: AnyRecord) -> None:
        super().emit(record)
        if self.dies(record):
            raise Killed


@dataclass
class Attempts:
    """Attempts at one spec, one after the other, each from the newest checkpoint of those before it.

    `records` are what a reader has who goes back to the checkpoint with the run.
    """

    spec: JobSpec
    drafts: Path
    records: list[AnyRecord] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    result: Result | None = None

    def go(
        self,
        dies: Callable[[AnyRecord], bool] = lambda record: False,
        word: Callable[[AnyRecord], bytes] = lambda record: CONTINUE,
        **options: Any,
    ) -> "Attempts":
        """One attempt. `word` is the supervisor's answer to a `Saved` or `Paused`; `options` are the context's."""
        sink = Dying(list(self.records), dies)
        cut = len(sink.records)

        def ask() -> bytes:
            nonlocal cut
            last = sink.records[-1]
            if isinstance(last, Saved) and not last.error:
                self.saved.append(last)
                cut = len(sink.records)
            return word(last)

        scramble()
        resume = self.drafts / str(self.saved[-1].step) if self.saved else None
        checkpoints = CheckpointAccess(self.drafts, resume, ask)
        context = replace(context_of(self.spec.resources.devices, sink, checkpoints=checkpoints), **options)
        try:
            # In a thread, where autograd counts its operations from 0, as it does in a new process: the order in which
            # it adds up gradients may hang on these counts.
            with ThreadPoolExecutor(1) as process:
                self.result = process.submit(entry.run_recipe, self.spec, context).result()
            cut = len(sink.records)
        except (Killed, StopTraining):
            pass
        finally:
            self.records = sink.records[:cut]
        return self

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.drafts / str(self.saved[-1].step) / "model.safetensors")

    @property
    def state(self) -> dict[str, Any]:
        """Everything else that the newest checkpoint has."""
        path = self.drafts / str(self.saved[-1].step) / "rank-0.pt"
        found: dict[str, Any] = torch.load(path, weights_only=True)
        return found

    def report(self) -> Report:
        lease = [LeasedDevice(n, f"cpu:{n}", "here", "cpu", "virtual") for n in range(self.spec.resources.devices)]
        told = RecipeAggregator("job", 1, self.spec, lease, predict_splits(self.spec, None))
        for record in (*self.records, Outcome(0, 0)):
            told.add_record(0, record)
        return told.make_report(final=True)


def scramble() -> None:
    """Nothing of a run before may help."""
    torch.manual_seed(torch.seed() % 2**31)
    random.seed()
    np.random.seed()


def attempts(directory: Path, program: dict[str, Any], every: int, **parallelism: Any) -> Attempts:
    drafts = directory / f"drafts-{len(list(directory.iterdir()))}"
    drafts.mkdir()
    return Attempts(spec_of({"checkpoint": {"every_steps": every}} | program, **parallelism), drafts)


def flat(value: Any, where: str = "") -> dict[str, Any]:
    """What is in nested containers, by its place; tensors as their type and bytes."""
    if isinstance(value, dict):
        return {place: part for key, inner in value.items() for place, part in flat(inner, f"{where}.{key}").items()}
    if isinstance(value, (list, tuple)):
        return {place: part for n, inner in enumerate(value) for place, part in flat(inner, f"{where}.{n}").items()}
    if isinstance(value, torch.Tensor):
        return {
            where: (value.dtype, tuple(value.shape), value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        }
    return {where: value}


def seen(records: list[AnyRecord]) -> list[tuple[Any, ...]]:
    """What must come out the same in a run that was broken off: all but times, and when it was saved. A loss of all
    ranks is told a step later, unless the run is saved before: each kind is in an order of its own."""
    told: list[tuple[Any, ...]] = []
    for record in records:
        match record:
            case Step():
                told.append(("step", record.phase, record.step, record.epoch, record.splits))
            case MetricSample() if record.name != "rows_per_second":
                told.append(("metric", record.device, record.name, record.step, record.value))
            case Result():
                told.append(("result", record.loss, record.metrics))
    return sorted(told, key=lambda each: each[0])


def splits(records: list[AnyRecord]) -> set[BatchSplit]:
    return {record for record in records if isinstance(record, BatchSplit)}


def is_step(phase: str, number: int) -> Callable[[AnyRecord], bool]:
    return lambda record: isinstance(record, Step) and (record.phase, record.step) == (phase, number)


def is_metric(name: str, step: int) -> Callable[[AnyRecord], bool]:
    return lambda record: isinstance(record, MetricSample) and (record.name, record.step) == (name, step)


def is_saved(step: int) -> Callable[[AnyRecord], bool]:
    return lambda record: isinstance(record, Saved) and record.step == step


def is_paused(step: int) -> Callable[[AnyRecord], bool]:
    return lambda record: isinstance(record, Paused) and record.step == step
