"""A plan as plain text for a terminal: who would get what of every batch, before anything runs."""

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType

from jobs.model.spec import JobSpec, RecipeProgram
from jobs.render.text_tables import counted, finding_lines, note_lines, page, split_tables
from jobs.splits.lint import Finding
from jobs.splits.plan import Pattern


def render(
    spec: JobSpec,
    rows: int | None,
    patterns: Sequence[Pattern],
    findings: Sequence[Finding],
    notes: Mapping[str, str],
    width: int = 100,
) -> str:
    """The plan of one epoch of `spec`, whose training data has `rows` rows (`None`: not known)."""

    planned = isinstance(spec.program, RecipeProgram)

    def splits(width: int) -> Iterator[RenderableType]:
        known = [pattern for pattern in patterns if pattern.rows is not None]
        if known:
            yield from split_tables(known, width)
        for pattern in patterns:
            if pattern.rows is None:
                yield f"{pattern.phase}: {counted(pattern.steps)} steps, whose rows of each device are not known"
        if not patterns and planned:
            yield "there is no batch at all"
        elif not patterns:
            yield "not known before it runs: the report of the run will show who got what"

    sections = (
        ("Splits of one epoch: rows of each device", splits),
        *([("Findings", lambda width: finding_lines(findings))] if planned else []),
        ("Notes", lambda width: note_lines(notes)),
    )
    return page(_header(spec, rows), sections, width)


def _header(spec: JobSpec, rows: int | None) -> Iterator[str]:
    devices = spec.resources.devices
    yield f"Plan of {spec.name}: nothing has run"
    size = "rows not known here" if rows is None else f"{counted(rows)} rows"
    batch = "batch size not known here"
    if spec.batch_size is not None and spec.global_batch_size is not None:
        batch = f"batch size {counted(spec.batch_size)}, {counted(spec.global_batch_size)} over all"
    yield f"strategy {spec.parallelism.strategy}, {devices} {'device' if devices == 1 else 'devices'}; {size}, {batch}"
