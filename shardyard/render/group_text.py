"""Reports of comparisons and sweeps as plain text for a terminal."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType

from shardyard.contract.groups import ComparisonReport, LeftOut, SweepReport, TrialResult, VariantResult
from shardyard.formatting import count_noun
from shardyard.render.text_tables import (
    NOT_MEASURED,
    format_bytes,
    format_measure,
    format_share,
    make_grid,
    plain_text,
    render_page,
    shorten_name,
)

WIDTH = 110
#: Rows of a table of trials.
MAX_ROWS = 200


def render_comparison(report: ComparisonReport) -> str:
    """The whole report as text, which ends with a newline."""
    head = (
        f"comparison {report.name} ({report.id}): {report.state}",
        describe_length(report),
    )
    sections = [
        ("variants", lambda _: _variant_table(report)),
        ("not succeeded", lambda _: (plain_text(words) for words in failed_variants(report))),
        ("left out", lambda _: (plain_text(describe_left_out(one)) for one in report.left_out)),
        ("recommendation", lambda _: (plain_text(words) for words in describe_recommendation(report))),
        ("notes", lambda _: (plain_text(words) for words in report.notes)),
    ]
    return render_page(head, sections, WIDTH)


def describe_length(report: ComparisonReport) -> str:
    rows, steps, first = report.global_batch_size, count_noun(report.steps, "step"), report.warm_up_steps
    return f"{rows:,} rows a step, {steps}, the first {first} of them to warm up"


def describe_search(report: SweepReport) -> str:
    best = "least" if report.mode == "min" else "most"
    count = f"{len(report.trials)} of {count_noun(report.planned, 'trial')}"
    return f"{report.search} search, {count}; best is the {best} {report.metric}"


def describe_left_out(one: LeftOut) -> str:
    return f"{one.strategy} on {one.devices}: {one.why}"


def describe_recommendation(report: ComparisonReport) -> list[str]:
    found = report.recommendation
    return [words for words in (found.reason, found.price) if words]


#: Titles of the columns of a comparison, and its cells.
VARIANT_COLUMNS = ("rows/s", "±", "ms a step", "devices' worth", "efficiency", "comm", "S", "memory", "loss")


def variant_cells(one: VariantResult) -> list[str]:
    return [
        _rate(one.rows_per_second),
        _rate(one.rows_per_second_error),
        format_measure(one.step_ms),
        NOT_MEASURED if one.devices_worth is None else f"{one.devices_worth:.2f}",
        format_share(one.efficiency),
        format_share(one.communication_share),
        NOT_MEASURED if one.slowdown is None else f"{one.slowdown:.2f}",
        format_bytes(one.memory_peak_bytes),
        format_measure(one.loss),
    ]


def _rate(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:,.0f}"


def variant_name(one: VariantResult) -> str:
    return f"{one.strategy} on {one.devices}"


def describe_failures(jobs: Sequence[tuple[str, VariantResult | TrialResult]]) -> list[str]:
    """Why jobs ended that did not succeed; with what each is called."""
    return [
        f"{name}: {one.state}, {one.reason}{f': {one.message}' if one.message else ''}"
        for name, one in jobs
        if one.state in ("failed", "cancelled")
    ]


def failed_variants(report: ComparisonReport) -> list[str]:
    return describe_failures([(variant_name(one), one) for one in report.variants])


def failed_trials(report: SweepReport) -> list[str]:
    return describe_failures([(f"trial {one.number}", one) for one in report.trials])[:MAX_ROWS]


def _variant_table(report: ComparisonReport) -> Iterator[RenderableType]:
    grid = make_grid(("variant", "state"), VARIANT_COLUMNS)
    for one in report.variants:
        grid.add_row(variant_name(one), one.state, *variant_cells(one))
    yield grid


def render_sweep(report: SweepReport) -> str:
    """The whole report as text, which ends with a newline."""
    head = [
        f"sweep {report.name} ({report.id}): {report.state}",
        describe_search(report),
    ]
    best = best_trial(report)
    if best is not None:
        head.append(f"best: trial {best.number}, {report.metric} {format_measure(best.value)}, {describe_values(best)}")
    sections = [
        ("trials", lambda _: _trial_table(report)),
        ("not succeeded", lambda _: (plain_text(words) for words in failed_trials(report))),
        ("notes", lambda _: (plain_text(words) for words in report.notes)),
    ]
    return render_page(head, sections, WIDTH)


def describe_values(one: TrialResult) -> str:
    return ", ".join(f"{path} = {_value(value)}" for path, value in one.values.items())


def best_trial(report: SweepReport) -> TrialResult | None:
    """None while no trial has ended with a value."""
    return next((one for one in report.trials if one.number == report.best), None)


def ranked_trials(report: SweepReport) -> list[TrialResult]:
    """The best first; those without a value last."""
    sign = 1 if report.mode == "min" else -1
    return sorted(report.trials, key=lambda one: (one.value is None, sign * (one.value or 0.0), one.number))


def short_paths(report: SweepReport) -> list[str]:
    """The last parts of the paths, as many as tell them apart."""
    paths, parts = report.paths, 1
    while parts < 10:
        short = [".".join(path.split(".")[-parts:]) for path in paths]
        if len(set(short)) == len(paths):
            return short
        parts += 1
    return list(paths)


def trial_cells(report: SweepReport, one: TrialResult) -> list[str]:
    values = [_value(one.values[path]) if path in one.values else NOT_MEASURED for path in report.paths]
    seconds = NOT_MEASURED if one.seconds is None else f"{one.seconds:,.1f}"
    return [format_measure(one.value), *values, format_measure(one.loss), _rate(one.rows_per_second), seconds]


def trial_columns(report: SweepReport) -> list[str]:
    return [report.metric, *short_paths(report), "loss", "rows/s", "seconds"]


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    return shorten_name(str(value))


def _trial_table(report: SweepReport) -> Iterator[RenderableType]:
    grid = make_grid(("trial", "state"), trial_columns(report))
    for one in ranked_trials(report)[:MAX_ROWS]:
        grid.add_row(str(one.number), one.state, *trial_cells(report, one))
    yield grid
