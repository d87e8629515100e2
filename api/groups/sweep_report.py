"""The report of a sweep: what each trial has measured, and the best of them."""

import math
from collections.abc import Sequence

import msgspec

from api.groups.measures import JobMeasures
from shardyard.contract.groups import Sweep, SweepReport, Trial, TrialResult


def make_report(found: Sweep, measures: Sequence[JobMeasures]) -> SweepReport:
    """`measures` are in the order of the trials."""
    results = [_measure_trial(trial, one, found.metric) for trial, one in zip(found.trials, measures, strict=True)]
    paths = list(dict.fromkeys(path for trial in found.trials for path in trial.values))
    best, notes = _find_best(results, found.mode), [found.note] if found.note else []
    if found.ended and best is None:
        notes.append(f"no trial that succeeded has a value of {found.metric}")
    return SweepReport(
        id=found.id,
        name=found.name,
        state=found.state,
        complete=found.ended,
        search=found.search,
        metric=found.metric,
        mode=found.mode,
        planned=found.planned,
        paths=paths,
        trials=results,
        best=best,
        notes=notes,
    )


def _measure_trial(trial: Trial, measures: JobMeasures, metric: str) -> TrialResult:
    return TrialResult(
        **msgspec.structs.asdict(trial),
        value=measures.read_metric(metric),
        loss=measures.loss,
        rows_per_second=measures.read_metric("rows_per_second"),
        seconds=measures.seconds,
        curve=measures.curve,
    )


def _find_best(results: Sequence[TrialResult], mode: str) -> int | None:
    """Of equal ones the first."""
    sign = 1 if mode == "min" else -1
    known = [
        (sign * one.value, one.number)
        for one in results
        if one.state == "succeeded" and one.value is not None and math.isfinite(one.value)
    ]
    return min(known)[1] if known else None
