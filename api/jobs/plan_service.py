"""Plans of jobs: lists the recipes and predicts splits. Plain functions, since they need no store."""

from typing import Any

from api.schemas.requests import parse_spec
from jobs.model.spec import JobSpec, RecipeProgram
from shardyard.contract.batch_growth import find_batch_growth
from shardyard.contract.report import Finding
from shardyard.contract.responses import Plan


def list_recipes() -> dict[str, Any]:
    from jobs.model import catalogue

    return dict(catalogue.listing())


def plan_job(body: bytes, against: JobSpec | None = None) -> Plan:
    """The splits that a spec would give in one epoch, and what is wrong with them, also beside another job's spec.
    Pools are not asked: a plan may be about more devices than there are. Otherwise it raises as `submit` does."""
    return _predict_plan(parse_spec(body), against)


def plan_job_text(body: bytes, against: JobSpec | None = None) -> str:
    """The same for people. Raises as `plan` does."""
    from shardyard.render.plan_text import PlannedJob, render_plan

    wanted = parse_spec(body)
    predictable = isinstance(wanted.program, RecipeProgram)
    asked = wanted.resources
    about = PlannedJob(wanted.name, wanted.parallelism.strategy, asked.devices, predictable, asked.nodes)
    return render_plan(_predict_plan(wanted, against), about)


def _predict_plan(wanted: JobSpec, against: JobSpec | None) -> Plan:
    from jobs.model import catalogue
    from jobs.splits.findings.ranking import rank_findings
    from jobs.splits.lint import lint_splits
    from jobs.splits.plan import predict_splits

    rows, eval_rows = catalogue.rows_of(wanted)
    prediction = predict_splits(wanted, rows, eval_rows)
    found = lint_splits(wanted, prediction.epoch, rows) + _compare_specs(wanted, against)
    return Plan(
        rows=rows,
        batch_size=wanted.batch_size,
        global_batch_size=wanted.global_batch_size,
        patterns=prediction.epoch,
        findings=rank_findings(found),
        notes=prediction.notes,
    )


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
