"""The heat map of a split as SVG: devices across, in blocks where there are many, and patterns or measures down."""

from collections.abc import Iterator

from shardyard.contract.report import Report
from shardyard.render.svg.captions import REHEARSAL, describe_verdicts, kind_of, what_it_is
from shardyard.render.svg.heat_map_cells import (
    MAX_COLUMNS,
    MAX_LINES,
    MAX_LINES_IN_BLOCKS,
    MapCell,
    MapColumn,
    MapGrid,
    MapLine,
    make_map_grid,
)
from shardyard.render.svg.markup import Markup, element, fit_text, join_markup, text_width, wrap_text
from shardyard.render.svg.palette import IDLE, LEVELS, MEASURES, NOT_MEASURED, OUTPUT, SLOW, By
from shardyard.render.svg.svg import ALONE, PictureFrame, hatch_fill, label_text, svg_document

#: Columns beside each other.
ACROSS = 16
PAD = 16.0
ROW = 36.0
GAP = 3.0
#: A picture with a heading is at least this wide, so that its sentences have room.
_MIN_WIDTH = 460.0


def draw_heat_map(
    report: Report,
    by: By = "rows",
    *,
    name: str = "",
    output_device: int | None = None,
    frame: PictureFrame = ALONE,
) -> Markup:
    """The heat map as an SVG document. `name` is the job's; `output_device` where DataParallel gathers, if known."""
    in_blocks = frame.narrow or len(report.devices) > ACROSS
    found = make_map_grid(
        report,
        by,
        output_device,
        most=MAX_LINES_IN_BLOCKS if in_blocks else MAX_LINES,
        columns=ACROSS if frame.narrow else MAX_COLUMNS,
    )
    across = min(len(found.columns), 4 if frame.narrow else ACROSS)
    label = 124.0 if frame.narrow else 176.0
    cell = _cell_width(found, across, narrow=frame.narrow)
    pad = PAD if frame.heading else 2.0
    total = max(label + across * cell + 2 * pad, _MIN_WIDTH if frame.heading else 0)
    room = total - 2 * pad

    parts: list[Markup] = []
    y = pad
    if frame.heading:
        heading, y = _draw_heading(report, by, name, pad, room)
        parts.append(heading)
    if found.lines:
        for start in range(0, len(found.columns), across):
            block = range(start, min(start + across, len(found.columns)))
            drawn, y = _draw_block(found, block, frame, pad, y, label, cell)
            parts.append(drawn)
        legend, y = _draw_legend(found, frame, pad, y + 4, room)
        parts.append(legend)
    for remark in found.remarks:
        for words in wrap_text(remark, 11.5, room, 4):
            y += 16
            parts.append(label_text(words, pad, y, "muted small"))
    return svg_document(parts, total, y + pad, _map_title(report, by, name), _map_description(report, found), frame)


def _cell_width(found: MapGrid, across: int, *, narrow: bool) -> float:
    cells = [text_width(cell.words, 12.5) for line in found.lines for cell in line.cells]
    heads = [text_width(words, 11.5) for column in found.columns for words in (column.title, *dict(column.marks))]
    needed = max([*cells, *heads], default=0) + 8
    if narrow:
        return max(52.0, needed)
    return max(needed, min(112.0, max(52.0, 640 / across)))


# -- heading ---------------------------------------------------------------------------------------


def _map_title(report: Report, by: By, name: str) -> str:
    return f"{MEASURES[by][0]}: {name or f'job {report.job_id}'}"


def _map_description(report: Report, found: MapGrid) -> str:
    said = [what_it_is(report) + ".", *describe_verdicts(report)]
    if not any(describe_verdicts(report)):
        said.append("No device is idle or slow.")
    if report.rehearsal:
        said.append(REHEARSAL)
    return " ".join([*said, *(remark + "." for remark in found.remarks)])


def _draw_heading(report: Report, by: By, name: str, pad: float, room: float) -> tuple[Markup, float]:
    y = pad + 16
    shown = fit_text(name or f"job {report.job_id}", 17.5, room)
    parts = [label_text(shown, pad, y, "name")]
    for words in wrap_text(f"{MEASURES[by][0]}: {what_it_is(report)}", 12, room, 2):
        y += 18
        parts.append(label_text(words, pad, y, "muted"))
    said = [(words, f"strong {kind_of(words)}-word") for words in describe_verdicts(report)]
    if report.rehearsal:
        said.append((REHEARSAL, "strong"))
    y += 4 if said else 0
    for sentence, classes in said:
        for words in wrap_text(sentence, 13.4, room, 3):
            y += 17
            parts.append(label_text(words, pad, y, classes))
    return join_markup(parts), y + 14


# -- one block of columns --------------------------------------------------------------------------


def _draw_block(
    found: MapGrid, block: range, frame: PictureFrame, x: float, y: float, label: float, cell: float
) -> tuple[Markup, float]:
    columns = [found.columns[place] for place in block]
    y += 14
    # Marks stand at the bottom of the heads, next to what they mark.
    below = y + 13 * max(len(column.lines) + len(column.marks) for column in columns)
    parts = [
        _column_head(column, x + label + (place + 0.5) * cell, y, below, cell, plain=frame.narrow)
        for place, column in enumerate(columns)
    ]
    parts.append(label_text("device", x, y, "muted"))
    top = below + 8
    y = top
    for line in found.lines:
        parts.append(_draw_line(line, block, frame, x, y, label, cell))
        y += ROW
    for place, column in enumerate(columns):
        left = x + label + place * cell
        if any(mark == OUTPUT for _, mark in column.marks):
            parts.append(element("rect", class_="output-line", x=left, y=top - 6, width=cell - GAP, height=3, rx=1.5))
        if column.slow:
            wide, high = cell - GAP + 4, y - top - GAP + 4
            parts.append(element("rect", class_="slow-line", x=left - 2, y=top - 2, width=wide, height=high, rx=5.0))
    return join_markup(parts), y + 6


def _column_head(column: MapColumn, middle: float, y: float, below: float, room: float, *, plain: bool) -> Markup:
    middle -= GAP / 2
    parts = [element("title", column.tip)] if column.tip and not plain else []
    parts.append(label_text(column.title, middle, y, "mid strong" if len(column.title) < 5 else "mid strong small"))
    for words in column.lines:
        y += 13
        parts.append(label_text(fit_text(words, 10.8, room - 3), middle, y, "mid muted small"))
    for place, (words, mark) in enumerate(reversed(column.marks)):
        parts.append(label_text(words, middle, below - 13 * place, f"mid strong small {mark}-word"))
    return element("g", *parts)


def _draw_line(
    line: MapLine, block: range, frame: PictureFrame, x: float, y: float, label: float, cell: float
) -> Markup:
    room = label - 8
    title = fit_text(line.title, 12.3, room)
    words = fit_text(line.words, 10.8, room)
    parts = [
        element("title", f"{line.title}: {line.words}") if (title, words) != (line.title, line.words) else None,
        label_text(title, x, y + 14, ""),
        label_text(words, x, y + 27, "muted small"),
    ]
    named = element("g", *parts)
    cells = (
        _draw_cell(line.cells[place], frame, x + label + offset * cell, y, cell - GAP)
        for offset, place in enumerate(block)
    )
    return join_markup([named, *cells])


def _draw_cell(cell: MapCell, frame: PictureFrame, x: float, y: float, wide: float) -> Markup:
    parts = [] if frame.narrow else [element("title", cell.tip)]
    fill, classes = (hatch_fill(frame), "mid strong") if cell.kind == "idle" else (None, "mid")
    parts.append(element("rect", x=x, y=y, width=wide, height=ROW - GAP, rx=3.0, fill=fill))
    parts.append(label_text(cell.words, x + wide / 2, y + (ROW - GAP) / 2 + 4.2, classes))
    return element("g", *parts, class_=f"c{cell.level}" if cell.kind == "value" else cell.kind)


# -- legend ----------------------------------------------------------------------------------------


def _draw_legend(found: MapGrid, frame: PictureFrame, x: float, y: float, room: float) -> tuple[Markup, float]:
    """Items beside each other, in as many lines as they need."""
    end = x + room
    left, top = x, y
    parts: list[Markup] = []
    for wide, item in _legend_items(found, frame):
        if left > x and left + wide > end:
            left, top = x, top + 20
        parts.append(element("g", item, transform=f"translate({left:.1f} {top:.1f})"))
        left += wide + 18
    return join_markup(parts), top + 14


def _legend_items(found: MapGrid, frame: PictureFrame) -> Iterator[tuple[float, Markup]]:
    """Each with its width; drawn from (0, 0) down to 12."""
    low, high = found.scale
    start = text_width(low, 11) + 4
    squares = [
        element("g", element("rect", x=start + place * 13, y=0, width=12, height=12, rx=2), class_=f"c{place}")
        for place in range(LEVELS)
    ]
    after = start + LEVELS * 13 + 4
    yield (
        after + text_width(high, 11),
        join_markup([label_text(low, 0, 10, "muted small"), *squares, label_text(high, after, 10, "muted small")]),
    )
    marks = {mark for column in found.columns for _, mark in column.marks}
    kinds = {cell.kind for line in found.lines for cell in line.cells}
    if IDLE in marks or "idle" in kinds:
        swatch = element("rect", x=0, y=0, width=20, height=12, rx=2, fill=hatch_fill(frame))
        yield _legend_item(swatch, f"{IDLE}: got no rows")
    if SLOW in marks:
        swatch = element("rect", class_="slow-line", x=1, y=1, width=18, height=10, rx=3)
        yield _legend_item(swatch, f"{SLOW}: the others wait for it")
    if OUTPUT in marks:
        swatch = element("rect", class_="output-line", x=0, y=4, width=20, height=4, rx=2)
        yield _legend_item(swatch, f"{OUTPUT}: the outputs are gathered here")
    if "unknown" in kinds:
        swatch = element("g", element("rect", x=0.5, y=0.5, width=19, height=11, rx=2), class_="unknown")
        yield _legend_item(swatch, NOT_MEASURED)


def _legend_item(swatch: Markup, words: str) -> tuple[float, Markup]:
    return 25 + text_width(words, 11), join_markup([swatch, label_text(words, 25, 10, "muted small")])
