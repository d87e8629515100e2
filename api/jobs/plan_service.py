"""Plans of jobs: lists the recipes and predicts splits. Plain functions, since they need no store."""

from collections.abc import Sequence
from typing import Any

from jobs.model.device_history import RowHistory
from jobs.model.spec import JobSpec, RecipeProgram
from shardyard.contract.batch_growth import find_batch_growth
from shardyard.contract.report import Finding, Pattern
from shardyard.contract.responses import Plan


def list_recipes() -> dict[str, Any]:
    from jobs.model import catalogue

    return dict(catalogue.load())


def plan_job(wanted: JobSpec, against: JobSpec | None = None, history: RowHistory | None = None) -> Plan:
    """The splits that a spec would give in one epoch, and what is wrong with them, also beside another job's spec.
    Pools are not asked: a plan may be about more devices than there are. `history` is that of the devices that it would
    get, where these are known."""
    from jobs.model import catalogue
    from jobs.splits.findings.ranking import rank_findings
    from jobs.splits.lint import lint_splits
    from jobs.splits.plan import predict_splits
    from jobs.store import AttemptId

    rows, eval_rows = catalogue.rows_of(wanted)
    prediction = predict_splits(wanted, rows, eval_rows)
    found = lint_splits(wanted, prediction.epoch, rows) + _compare_specs(wanted, against)
    step_ms = None if history is None else _predict_step(prediction.epoch, history)
    notes = dict(prediction.notes)
    if history is not None and step_ms is not None:
        job = AttemptId.parse(history.attempt).job
        notes["step_ms"] = f"as long as a row took on each of the pool's devices in job {job}, whatever its model was"
    return Plan(
        rows=rows,
        batch_size=wanted.batch_size,
        global_batch_size=wanted.global_batch_size,
        patterns=prediction.epoch,
        findings=rank_findings(found),
        notes=notes,
        step_ms=step_ms,
    )


def plan_job_text(wanted: JobSpec, against: JobSpec | None = None, history: RowHistory | None = None) -> str:
    """The same for people."""
    from shardyard.render.plan_text import PlannedJob, render_plan

    predictable = isinstance(wanted.program, RecipeProgram)
    asked = wanted.resources
    about = PlannedJob(wanted.name, wanted.parallelism.strategy, asked.devices, predictable, asked.nodes)
    return render_plan(plan_job(wanted, against, history), about)


def _predict_step(patterns: Sequence[Pattern], history: RowHistory) -> float | None:
    """Forward and backward of the slowest device in the step with most rows; `None` where rows are not known."""
    known = [one.rows for one in patterns if one.phase != "eval" and one.rows is not None]
    if not known or any(None in rows or len(rows) != len(history.row_ms) for rows in known):
        return None
    most = max(known, key=lambda rows: sum(filter(None, rows)))
    return round(max((count or 0) * each for count, each in zip(most, history.row_ms, strict=True)), 4)


def _compare_specs(wanted: JobSpec, against: JobSpec | None) -> list[Finding]:
    """What a spec changes about the steps of another job with the same optimizer."""
    from jobs.model.catalogue import learning_rate

    if against is None or not all(isinstance(one.program, RecipeProgram) for one in (wanted, against)):
        return []
    optimizers = [one.recipe.optimizer for one in (wanted, against)]
    if None in optimizers or len({one.ref for one in optimizers if one is not None}) > 1:
        return []
    rates = learning_rate(wanted), learning_rate(against)
    found = find_batch_growth(wanted.global_batch_size, rates[0], against.global_batch_size, rates[1])
    return [] if found is None else [found]
