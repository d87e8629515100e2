"""Plans of jobs: lists the recipes and predicts splits. Plain functions, since they need no store."""

from typing import Any

from api.schemas.requests import parse_spec
from jobs.model.spec import JobSpec, RecipeProgram
from shardyard.contract.responses import Plan


def list_recipes() -> dict[str, Any]:
    from jobs.model import catalogue

    return dict(catalogue.listing())


def plan_job(body: bytes) -> Plan:
    """The splits that a spec would give in one epoch, and what is wrong with them. Pools are not asked: a plan may
    be about more devices than there are. Otherwise it raises as `submit` does."""
    return _predict_plan(parse_spec(body))


def plan_job_text(body: bytes) -> str:
    """The same for people. Raises as `plan` does."""
    from shardyard.render.plan_text import PlannedJob, render_plan

    wanted = parse_spec(body)
    predictable = isinstance(wanted.program, RecipeProgram)
    about = PlannedJob(wanted.name, wanted.parallelism.strategy, wanted.resources.devices, predictable)
    return render_plan(_predict_plan(wanted), about)


def _predict_plan(wanted: JobSpec) -> Plan:
    from jobs.model import catalogue
    from jobs.splits.lint import lint_splits
    from jobs.splits.plan import predict_splits
    from jobs.splits.ranking import rank_findings

    rows, eval_rows = catalogue.rows_of(wanted)
    prediction = predict_splits(wanted, rows, eval_rows)
    return Plan(
        rows=rows,
        batch_size=wanted.batch_size,
        global_batch_size=wanted.global_batch_size,
        patterns=prediction.epoch,
        findings=rank_findings(lint_splits(wanted, prediction.epoch, rows)),
        notes=prediction.notes,
    )
