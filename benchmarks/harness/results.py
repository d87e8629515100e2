"""From samples to what people read: a JSON file and a picture for each benchmark, and tables of all."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import machine
from benchmarks.harness.comparing import Figure, Goal, Growth, Kind, amount, growths, spread

DIRECTORY = Path(__file__).parents[1] / "results"
#: What the table of all figures stands between in a Markdown file.
MARKS = ("<!-- figures: written by `make bench` -->", "<!-- end of figures -->")

#: Of the project's README: benchmark, figure, the side to compare with. Of figures that grow, the largest size.
HEADLINES = (
    ("start", "POST to first step, one process", "python"),
    ("start", "POST to first step, DDP, 2 ranks", "torchrun"),
    ("start", "POST to first step beside Ray, DDP, 2 ranks", "Ray Jobs"),
    ("short_jobs", "trivial jobs a minute, a burst of 20", "Ray Jobs"),
    ("short_jobs", "POST to first log line", "Ray Jobs"),
    ("exits", "ranks return from the program", "torchrun"),
    ("training", "CIFAR CNN, DDP, 2 ranks, script", "plain"),
    ("event_stream", "cores of server and Redis for 1,000 lines a second", "one XREAD a client"),
)
#: Pictures that documents show: benchmark, how the names of its figures end, and the file.
DOC_PICTURES = (
    ("fair_share", ("mean wait of the busiest tenant", "mean wait of another tenant"), "docs/pictures/fair-shares.svg"),
)


def write(name: str, title: str, figures: Sequence[Figure], *, quick: bool, seconds: float, into: Path) -> Path:
    """Keep every sample of a benchmark, with the machine that it was taken on."""
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"{name}.json"
    content = {
        "benchmark": name,
        "title": title,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "seconds": round(seconds, 1),
        "load_1m": round(machine.load(), 2),
        "machine": machine.facts(),
        "figures": [asdict(figure) for figure in figures],
    }
    path.write_text(json.dumps(content, indent=1, default=str) + "\n")
    return path


def read(path: Path) -> tuple[dict[str, Any], list[Figure]]:
    """What `write` wrote."""
    content = json.loads(path.read_text())
    figures = [
        Figure(**{**each, "goals": [Goal(**{**goal, "kind": Kind(goal["kind"])}) for goal in each["goals"]]})
        for each in content.pop("figures")
    ]
    return content, figures


def summary(directory: Path) -> str:
    """Markdown: a table of all figures of a directory, and one of growth."""
    lines = ["# Figures", "", "Written by `make bench`; [the method](../README.md) says what each side is.", ""]
    for path in sorted(directory.glob("*.json")):
        content, figures = read(path)
        picture = "a quick run" if content["quick"] else f"[picture]({path.stem}.svg)"
        at = content["at"][:16].replace("T", " ")
        lines += [
            f"### {content['title']}",
            "",
            f"[Samples]({path.name}), {picture}, {at} UTC.",
            "",
            *table(figures),
            "",
        ]
        grown = growths(figures)
        if grown:
            lines += [*_growth_table(grown), ""]
    return "\n".join(lines).rstrip() + "\n"


def headlines(directory: Path) -> str:
    """Markdown: the figures that a newcomer should see, of the benchmarks that have run."""
    rows = ["| | Shardyard | | |", "|---|---|---|---|"]
    for name, wanted, side in HEADLINES:
        path = directory / f"{name}.json"
        found = [each for each in read(path)[1] if each.name == wanted] if path.exists() else []
        if found:
            figure = found[-1]
            label = wanted if figure.size is None else f"{wanted}, {figure.size:,.0f} {figure.size_of}"
            ours, theirs = (amount(median(figure.samples[each]), figure.unit) for each in (figure.ours, side))
            rows.append(f"| {label} | {ours} | {side}: {theirs} | {_ratio(figure, side)} |")
    return "\n".join(rows) + "\n"


def insert(text: str, table: str) -> str:
    """A Markdown text with `table` in place of what stands between the marks.

    Raises:
        ValueError: the text has no marks.
    """
    begin, end = MARKS
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"no place for the table: {begin} ... {end}")
    return f"{before}{begin}\n\n{table}\n{end}{after}"


def table(figures: Sequence[Figure]) -> list[str]:
    """Markdown lines: each side of each figure, how ours compares, and whether that was the goal."""
    rows = ["| what | side | median (lowest to highest) | ours is | goal | |", "|---|---|---|---|---|---|"]
    for figure in figures:
        name = figure.name if figure.size is None else f"{figure.name}, {figure.size:,.0f} {figure.size_of}"
        for side in figure.samples:
            goals = [goal for goal in figure.goals if (goal.against or figure.ours) == side]
            ours = "" if side == figure.ours else _ratio(figure, side)
            wanted = "; ".join(goal.words(figure.unit) for goal in goals)
            verdict = "; ".join("met" if figure.met(goal) else "**not met**" for goal in goals)
            rows.append(f"| {name} | {side} | {_spread(figure, side)} | {ours} | {wanted} | {verdict} |")
            name = ""
        if figure.note:
            rows.append(f"| | | *{figure.note}* | | | |")
    return rows


def _spread(figure: Figure, side: str) -> str:
    values = figure.samples[side]
    found = spread(values)
    if len(values) == 1:
        return amount(found.median, figure.unit)
    low, high = amount(found.lowest, figure.unit), amount(found.highest, figure.unit)
    return f"{amount(found.median, figure.unit)} ({low} to {high})"


def _ratio(figure: Figure, side: str) -> str:
    found = figure.ratio(side)
    better = "lower" if figure.lower_is_better else "higher"
    if found.median >= 1.05:
        return f"{found.median:.3g} times {better}"
    worse = "higher" if figure.lower_is_better else "lower"
    return f"{1 / found.median:.3g} times {worse}" if found.median < 0.95 else f"equal ({found.median:.3f})"


def _growth_table(grown: Sequence[Growth]) -> list[str]:
    rows = ["| growth of | side | from | to | exponent (0 flat, 1 linear) |", "|---|---|---|---|---|"]
    for each in grown:
        ends = [
            f"{amount(each.values[at], each.unit)} at {each.sizes[at]:,.0f} {each.size_of}"
            for at in (0, len(each.sizes) - 1)
        ]
        rows.append(f"| {each.name} | {each.side} | {ends[0]} | {ends[1]} | {each.exponent:.2f} |")
    return rows


def pictures(directory: Path) -> None:
    """One for each result of a directory, beside it, of what is compared or grows: the rest is in the tables."""
    for path in sorted(directory.glob("*.json")):
        content, figures = read(path)
        shown = [each for each in figures if len(each.samples) > 1 or each.size is not None]
        draw(content["title"], shown, path.with_suffix(".svg"))
        for of, endings, picture in DOC_PICTURES if directory == DIRECTORY else ():
            if of == path.stem:
                chosen = [each for each in shown if each.name.endswith(endings)]
                draw(content["title"], chosen, DIRECTORY.parents[1] / picture)


def draw(title: str, figures: Sequence[Figure], path: Path) -> None:
    """Every sample as a dot, its side's median as a bar, one row of pictures for each name; growth as lines."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(
        {
            "svg.hashsalt": "shardyard",
            "svg.fonttype": "none",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    from matplotlib import pyplot

    names = list(dict.fromkeys(figure.name for figure in figures))
    columns = min(2, len(names))
    rows = math.ceil(len(names) / columns)
    picture, axes = pyplot.subplots(
        rows, columns, figsize=(5.2 * columns, 2.6 * rows), squeeze=False, layout="constrained"
    )
    for axis, name in zip(axes.flat, names, strict=False):
        own = [figure for figure in figures if figure.name == name]
        if len(own) > 1 and all(figure.size is not None for figure in own):
            _draw_growth(axis, own)
        else:
            _draw_samples(axis, own[-1])
        axis.set_title(name, fontsize=9, loc="left")
    for axis in list(axes.flat)[len(names) :]:
        axis.remove()
    picture.suptitle(title, fontsize=11, x=0.01, ha="left")
    picture.savefig(path, metadata={"Date": None})
    pyplot.close(picture)


COLOURS = ("#0b6e99", "#c4632b", "#6a7d39", "#8a5a9e", "#777777")


def _draw_samples(axis: Any, figure: Figure) -> None:
    for row, values in enumerate(figure.samples.values()):
        colour = COLOURS[row % len(COLOURS)]
        axis.barh(row, median(values), color=colour, alpha=0.35, height=0.6)
        axis.plot(values, [row] * len(values), "o", color=colour, markersize=3.5)
        axis.annotate(
            f" {amount(median(values), figure.unit)}",
            (max(values), row),
            va="center",
            fontsize=8,
            annotation_clip=False,
        )
    axis.set_yticks(range(len(figure.samples)), list(figure.samples))
    axis.invert_yaxis()
    axis.margins(x=0.25)
    axis.set_xlim(left=0)
    axis.set_xlabel(figure.unit)


def _draw_growth(axis: Any, figures: Sequence[Figure]) -> None:
    figures = sorted(figures, key=lambda figure: figure.size or 0)
    for row, side in enumerate(figures[0].samples):
        points = [(figure.size, median(figure.samples[side])) for figure in figures if side in figure.samples]
        axis.plot(*zip(*points, strict=True), "o-", color=COLOURS[row % len(COLOURS)], label=side, markersize=4)
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_xlabel(figures[0].size_of)
    axis.set_ylabel(figures[0].unit)
    axis.legend(fontsize=8, frameon=False)
