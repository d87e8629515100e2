"""The split report as plain text for a terminal (`shardyard.render.text_tables` has the layout)."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rich.console import RenderableType
from rich.table import Table

from shardyard.contract.report import (
    DeviceMeasures,
    NodeMeasures,
    Report,
    Timing,
    WhatIf,
    has_whole_times,
    time_parts,
    weight_lines,
)
from shardyard.render.hardware_cells import CAPTION, hardware_cells, hardware_remarks
from shardyard.render.text_tables import (
    NOT_MEASURED,
    describe_devices,
    describe_rates,
    finding_lines,
    format_bytes,
    format_count,
    format_flop,
    format_indexes,
    format_measure,
    format_share,
    format_timing,
    hidden_note_lines,
    make_grid,
    note_lines,
    plain_text,
    render_page,
    shorten_name,
    split_tables,
    table_width,
)

#: Columns from which tables have room for more.
_WIDE = 120
#: Nodes that the head names.
_MOST_NODES = 4
#: Of what-if, in parts of the run's time.
_SHOWN_PART = 0.005
_PART_TITLES = {
    "data_wait_ms": "data wait",
    "forward_ms": "forward",
    "backward_ms": "backward",
    "comm_ms": "comm",
    "optimizer_ms": "optimizer",
    "other_ms": "other",
}


def render_report(report: Report, width: int = 100, *, notes: bool = False) -> str:
    """The whole report as text of at most `width` columns (at least 80), which ends with a newline. Without `notes`,
    one line tells how many there are."""
    sections = [(title, partial(section, report)) for title, section in _SECTIONS]
    shown = note_lines if notes else hidden_note_lines
    return render_page(_header_lines(report), [*sections, ("Notes", lambda _: shown(report.notes))], width)


def _header_lines(report: Report) -> Iterator[str]:
    end = "final" if report.final else "so far"
    yield f"Split report of job {report.job_id}, attempt {report.attempt}, {end}"
    if report.rehearsal:
        yield "REHEARSAL: the devices only acted as GPUs; splits are theirs, times and memory are the CPU's"
    if report.resumed is not None:
        step, attempt = report.resumed.step, report.resumed.attempt
        yield f"resumed after {format_count(step)} steps, from a checkpoint of attempt {attempt}; they count here too"
    nodes = _name_nodes(report)
    devices = describe_devices(len(report.devices), report.device_kind, virtual=report.virtual)
    yield f"strategy {report.strategy}, {devices} on {nodes}"
    if report.verdict:
        yield report.verdict
    if not has_whole_times(report):
        yield "made by an earlier version: times are those of the measured steps alone"


def _name_nodes(report: Report) -> str:
    nodes = list(dict.fromkeys(device.node for device in report.devices))
    more = len(nodes) - _MOST_NODES
    return ", ".join(nodes[:_MOST_NODES]) + (f" and {more} more" if more > 0 else "")


def _pattern_table(report: Report, width: int) -> Iterator[RenderableType]:
    if not report.patterns:
        yield "no step has been seen"
    kept = [pattern for pattern in report.patterns if pattern.rows is not None]
    if kept:
        yield from split_tables(kept, width)
    if any(pattern.shapes_vary for pattern in kept):
        yield "* the shapes differ between these steps"
    if any(count is None for pattern in kept for count in pattern.rows or ()):
        yield f"{NOT_MEASURED} the rows could not be counted: {report.notes.get('patterns.rows', 'see the notes')}"
    for pattern in report.patterns:
        if pattern.rows is None:
            yield f"{format_count(pattern.steps)} more steps, divided in further ways"


def _device_table(report: Report, width: int) -> Iterator[RenderableType]:
    several = len({device.node for device in report.devices}) > 1
    names = ["device", *(["node"] if several else []), "id"]
    table = make_grid(names, ["rows", "share", "steps", "idle", "ms/row", "peak memory"])
    for device, measures in zip(report.devices, report.per_device, strict=True):
        table.add_row(
            str(device.device),
            *([plain_text(shorten_name(device.node))] if several else []),
            plain_text(shorten_name(device.id)),
            format_count(measures.rows),
            NOT_MEASURED if measures.share is None else f"{measures.share:.1%}",
            format_count(measures.steps),
            format_count(measures.idle_steps),
            format_measure(measures.ms_per_row),
            format_bytes(measures.memory_peak_bytes),
        )
    yield table
    together = describe_rates(report)
    if together:
        yield f"{together} together"


def _node_tables(report: Report, width: int) -> Iterator[RenderableType]:
    """What each node's devices got and cost together."""
    if not report.per_node:
        return
    table = make_grid(["node", "devices"], ["rows", "share", "steps", "slowest device"])
    for node in report.per_node:
        table.add_row(
            plain_text(shorten_name(node.node)),
            format_indexes(node.devices),
            format_count(node.rows),
            format_share(node.share),
            format_count(node.steps),
            format_count(node.slowest_device),
        )
    yield table
    times = _times_of("node", [(shorten_name(node.node), node) for node in report.per_node], width)
    if times.row_count:
        yield ""
        yield times


def _rate_table(report: Report, width: int) -> Iterator[RenderableType]:
    """The work of each device in a second, where more than its rows is known."""
    shown = [
        (title, name, show)
        for title, name, show in (
            ("rows/s", "rows_per_second", format_measure),
            ("tokens/s", "tokens_per_second", format_measure),
            ("FLOP a step", "flop_per_step", format_flop),
            ("FLOP/s", "flop_per_second", format_flop),
            ("MFU", "mfu", format_share),
        )
        if any(getattr(device, name) is not None for device in report.per_device)
    ]
    if len(shown) < 2:
        return
    table = make_grid(["device"], [title for title, _, _ in shown])
    for device in report.per_device:
        table.add_row(str(device.device), *(show(getattr(device, name)).rstrip() for _, name, show in shown))
    yield table


def _part_table(report: Report, width: int) -> Iterator[RenderableType]:
    """What each device's time went into: shares of its wall time, and seconds where there is room."""
    if has_whole_times(report):
        table = _times_of("device", [(str(device.device), device) for device in report.per_device], width)
        if table.row_count:
            yield table


def _times_of(title: str, rows: Sequence[tuple[str, DeviceMeasures | NodeMeasures]], width: int) -> Table:
    """A row for each that has times."""
    table = make_grid([title], ["wall", *_PART_TITLES.values()])
    for name, measures in rows:
        parts = time_parts(measures)
        whole = measures.wall_ms or sum(parts.values())
        if parts and whole:
            cells = (_part_cell(parts.get(part), whole, width) for part in _PART_TITLES)
            table.add_row(plain_text(name), f"{format_measure(whole / 1000)} s", *cells)
    return table


def _part_cell(total: float | None, whole: float, width: int) -> str:
    if total is None:
        return NOT_MEASURED
    seconds = f"{format_measure(total / 1000)} s " if width >= _WIDE else ""
    return f"{seconds}{total / whole:.0%}"


def _time_table(report: Report, width: int) -> Iterator[RenderableType]:
    table = make_grid(["device"], ["forward", "backward", "data wait", "communication"])
    for device in report.per_device:
        times = (device.forward_ms, device.backward_ms, device.data_wait_ms, device.comm_ms)
        if any(timing is not None for timing in times):
            table.add_row(str(device.device), *map(format_timing, times))
    if table.row_count:
        yield table


def _hardware_table(report: Report, width: int) -> Iterator[RenderableType]:
    if not report.hardware:
        return
    cells = hardware_cells(report.hardware)
    columns = len(cells[0])
    most = columns if table_width(cells) <= width else (columns + 2) // 2
    for start in range(1, columns, most):
        table = make_grid(cells[0][:1], cells[0][start : start + most])
        for row in cells[1:]:
            table.add_row(*map(plain_text, (row[0], *row[start : start + most])))
        yield table
    yield CAPTION
    yield from hardware_remarks(report.hardware)


def _primitive_table(report: Report, width: int) -> Iterator[RenderableType]:
    if report.primitives is None:
        return
    table = make_grid(["primitive"], ["p50", "p95", "total"])
    for field in report.primitives.__struct_fields__:
        timing: Timing = getattr(report.primitives, field)
        table.add_row(field.removesuffix("_ms"), *map(format_measure, (timing.p50, timing.p95, timing.total)))
    yield table


def _balance_table(report: Report, width: int) -> Iterator[RenderableType]:
    balance, what_if = report.balance, report.what_if
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    lines = (
        ("rows, most over mean", format_measure(balance.rows_max_over_mean)),
        ("time, most over mean", format_measure(balance.time_max_over_mean)),
        ("slowest device", format_count(balance.slowest_device)),
        *([] if balance.slowest_node is None else [("slowest node", balance.slowest_node)]),
        ("main cause of lost time", balance.cause or NOT_MEASURED),
        ("steps of idle devices", format_count(balance.idle_device_steps)),
        ("device seconds spent waiting for the slowest", format_measure(balance.wasted_device_seconds)),
        ("memory, output device over the others", format_measure(balance.output_device_memory_skew)),
    )
    for name, value in (*lines, *(() if what_if is None else _what_if_lines(what_if))):
        table.add_row(name, plain_text(value))
    yield table


def _what_if_lines(what_if: WhatIf) -> Iterator[tuple[str, str]]:
    """Parts of less than a hundredth are left out."""
    yield "run time over that of devices that are alike", f"{what_if.ratio:.2f}"
    parts = {name: getattr(what_if, name) for name in ("rows", "compute", "input", "other")}
    shown = [f"{name} +{part:.2f}" for name, part in parts.items() if part >= _SHOWN_PART]
    if shown:
        yield f"  what device {what_if.device} adds to it", ", ".join(shown)


def _prediction_lines(report: Report, width: int) -> Iterator[RenderableType]:
    verdict = {True: "the splits are those that were planned", False: "the splits are not those that were planned"}
    if report.prediction.matches is not None:
        yield verdict[report.prediction.matches]
    for difference in report.prediction.differences:
        yield f"- {difference}"


_SECTIONS: tuple[tuple[str, Callable[[Report, int], Iterator[RenderableType]]], ...] = (
    ("Splits: rows of each device", _pattern_table),
    ("Nodes", _node_tables),
    ("Devices", _device_table),
    ("Throughput", _rate_table),
    ("Where each device's time went", _part_table),
    ("Times per step in ms, p50 / p95", _time_table),
    ("DataParallel's primitives in ms", _primitive_table),
    ("Hardware, sampled once a second", _hardware_table),
    ("Balance", _balance_table),
    ("Weights", lambda report, width: iter(() if report.weights is None else weight_lines(report.weights))),
    ("Plan", _prediction_lines),
    ("Findings", lambda report, width: finding_lines(report.findings)),
)
