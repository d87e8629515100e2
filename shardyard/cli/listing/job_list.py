"""The commands `list` and `ps`."""

import sys
from typing import Annotated

import typer
from rich.cells import cell_len

from shardyard.cli.common import (
    AsJson,
    Commands,
    NoColor,
    Token,
    Url,
    connect_client,
    make_console,
    make_table,
    parse_seconds,
    plain_rows,
)
from shardyard.cli.framework.completion import STATES, complete_names, complete_pools, complete_states
from shardyard.cli.listing.job_columns import (
    COLUMNS,
    EXTRA,
    SHOWN,
    SORTED,
    WIDE,
    ListRow,
    check_name,
    check_sort,
    is_extra,
    parse_columns,
    show_cell,
)
from shardyard.cli.output.documents import Output, OutputForm, parse_output, print_document
from shardyard.contract.errors import InvalidRequest

#: States of a job that has not ended.
UNFINISHED = STATES[:3]
#: What is cut where a terminal is too narrow, in this order, and the least that is left of it.
CUT = {"labels": 8, "where": 8, "outcome": 14, "name": 12}
#: Between columns.
GAP = 2

State = Annotated[
    str | None,
    typer.Option(
        help=f"Only jobs in this state, or in one of several: {', '.join(STATES)}.",
        metavar="STATE[,STATE]",
        show_default=False,
        autocompletion=complete_states,
    ),
]
Pool = Annotated[
    str | None, typer.Option(help="Only jobs of this pool.", show_default=False, autocompletion=complete_pools)
]
Label = Annotated[str | None, typer.Option(help="Only jobs with this label, key=value.", show_default=False)]
Name = Annotated[
    str | None, typer.Option(help="Only jobs of this name.", show_default=False, autocompletion=complete_names)
]
Search = Annotated[
    str | None, typer.Option(help="Only jobs with this text in their id, name or a label.", show_default=False)
]
Since = Annotated[
    str | None,
    typer.Option(metavar="AGE", help="Only jobs submitted within this time: 90s, 10m, 2h, 1d.", show_default=False),
]
Sort = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="Sort by a column; a leading - reverses the order: "
        f"{', '.join((*SORTED, *EXTRA))}, metrics.NAME, spec.FIELD.",
        show_default="created",
        autocompletion=lambda incomplete: [
            f"{sign}{name}" for sign in ("", "-") for name in SORTED if f"{sign}{name}".startswith(incomplete)
        ],
    ),
]
Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        "-c",
        metavar="COLUMN,COLUMN",
        help=f"What to show: {', '.join((*COLUMNS, *EXTRA))}, metrics.NAME, spec.FIELD.",
        show_default=",".join(SHOWN),
        autocompletion=lambda incomplete: [
            f"{incomplete.rpartition(',')[0]}{incomplete.rpartition(',')[1]}{name}"
            for name in COLUMNS
            if name.startswith(incomplete.rpartition(",")[2])
        ],
    ),
]
Archived = Annotated[bool, typer.Option("--archived", help="Jobs that ended long ago, instead of the others.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many.")]
Cursor = Annotated[str | None, typer.Option(help="Continue where an earlier list ended.", show_default=False)]


def list_jobs(
    state: State = None,
    pool: Pool = None,
    label: Label = None,
    name: Name = None,
    search: Search = None,
    since: Since = None,
    sort: Sort = None,
    columns: Columns = None,
    output: Output = None,
    archived: Archived = False,
    limit: Limit = 20,
    cursor: Cursor = None,
    no_color: NoColor = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first. Also: shardyard ls."""
    form, states = parse_output(output, as_json), _parse_states(state)
    shown = parse_columns(columns) if columns is not None else (WIDE if form.name == "wide" else SHOWN)
    if cursor is not None and (len(states) > 1 or sort is not None):
        raise InvalidRequest("--cursor continues a list of one state, in the order of time; leave --sort out")
    if sort is not None:
        check_sort(sort)
    chosen = {"pool": pool, "label": label, "name": name, "search": search, "archived": archived or None}
    from shardyard.cli.listing.job_selection import JobQuery, find_jobs

    age = None if since is None else parse_seconds(since, "--since")
    extra = () if form.is_document and sort is None else _extra_columns(shown, sort)
    query = JobQuery(filters=chosen, columns=extra, states=states, since=age, sort=sort, limit=limit, cursor=cursor)
    with connect_client(url, token) as client:
        found = find_jobs(client, query)
    if form.is_document:
        return print_document({"jobs": [row.raw for row in found.rows], "next": found.next}, form)
    _print_table(found.rows, shown, form)
    if found.next or found.left_out:
        print(found.left_out or f"more: --cursor {found.next}", file=sys.stderr)
    return None


def list_unfinished(
    pool: Pool = None,
    sort: Sort = None,
    columns: Columns = None,
    output: Output = None,
    limit: Limit = 20,
    no_color: NoColor = False,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """List the jobs that have not ended: shardyard list --state queued,starting,running."""
    states = ",".join(UNFINISHED)
    list_jobs(
        state=states,
        pool=pool,
        sort=sort,
        columns=columns,
        output=output,
        limit=limit,
        url=url,
        token=token,
        as_json=as_json,
    )


def _parse_states(given: str | None) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip().lower() for name in (given or "").split(",") if name.strip()))
    for name in names:
        check_name(name, "--state", STATES)
    return names


def _extra_columns(shown: tuple[str, ...], sort: str | None) -> tuple[str, ...]:
    """The columns that are asked of the service: those that are shown, and what jobs are sorted by."""
    names = [*(("loss",) if "outcome" in shown else ()), *shown, *([sort.removeprefix("-")] if sort else [])]
    return tuple(dict.fromkeys(name for name in names if is_extra(name)))


def _print_table(jobs: list[ListRow], shown: tuple[str, ...], form: OutputForm) -> None:
    out = make_console()
    if not jobs:
        return out.print("no jobs")
    table = make_table(*(_head_column(name) for name in shown))
    rows = [[show_cell(name, job) for name in shown] for job in jobs]
    for row in rows:
        table.add_row(*row)
    widths = [max(cell_len(str(cell)) for cell in (name, *cells)) for name, *cells in zip(shown, *rows, strict=True)]
    for column, width in zip(table.columns, fit_widths(shown, widths, out.width), strict=True):
        column.max_width = width
    # Who wants everything gets it, on as many lines as a terminal needs.
    return out.print(plain_rows(table), soft_wrap=True) if form.name == "wide" else out.print(table)


def _head_column(name: str) -> str:
    """The heading of a column; `#`: numbers are aligned right."""
    is_number = COLUMNS[name].is_number if name in COLUMNS else not name.startswith(("spec.", "owner"))
    return ("#" if is_number else "") + (name.upper() if name in COLUMNS else name)


def fit_widths(shown: tuple[str, ...], widths: list[int], room: int) -> list[int]:
    """Widths of columns that fit into a terminal, as far as columns of free text can be cut for that."""
    fitted = dict(zip(shown, widths, strict=True))
    excess = sum(widths) + GAP * (len(widths) - 1) - room
    for name, least in CUT.items():
        if name in fitted and excess > 0:
            cut = max(0, min(excess, fitted[name] - least))
            fitted[name] -= cut
            excess -= cut
    return list(fitted.values())


COMMANDS: Commands = {"list": list_jobs, "ps": list_unfinished}
