"""The command `hardware`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from shardyard.cli.common import (
    AsJson,
    Commands,
    JobId,
    Token,
    Url,
    connect_client,
    make_console,
    make_table,
    print_json,
)

if TYPE_CHECKING:
    from shardyard.contract.responses import BucketView, SeriesView

#: Buckets of each series, of which a curve is drawn.
POINTS = 24
_LEVELS = "▁▂▃▄▅▆▇█"


def hardware_command(
    job: JobId,
    device: Annotated[int | None, typer.Option(help="Only this device of the lease.", show_default=False)] = None,
    attempt: Annotated[int | None, typer.Option(help="Default: the newest.", show_default=False)] = None,
    url: Url = None,
    token: Token = None,
    as_json: AsJson = False,
) -> None:
    """Show what a job's devices did second by second: use, memory, power, temperature, clocks, processor cores."""
    import msgspec

    from shardyard.client import operations

    with connect_client(url, token) as client:
        found = client.run(
            operations.read_metrics(job, source="hardware", device=device, attempt=attempt, points=POINTS)
        )
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    if not found:
        make_console().print("no sample has been taken: a node takes one a second while a job runs")
        return
    _print_series(found)


def _print_series(found: "Sequence[SeriesView]") -> None:
    from shardyard.contract.hardware import SERIES_TITLES
    from shardyard.render.hardware_cells import format_series_value

    order = list(SERIES_TITLES)
    listing = make_table("device", "series", "#latest", "#min", "#mean", "#max", "over time")
    for one in sorted(found, key=lambda one: (one.device, order.index(one.name) if one.name in order else len(order))):
        means = [bucket.mean for bucket in one.buckets if bucket.mean is not None]
        if not means:
            continue
        numbers = means[-1], _least(one.buckets), _mean(one.buckets), _most(one.buckets)
        title = SERIES_TITLES.get(one.name, one.name)
        listing.add_row(
            str(one.device), title, *(format_series_value(one.name, value) for value in numbers), draw_curve(means)
        )
    make_console().print(listing)


def draw_curve(values: Sequence[float]) -> str:
    """One character for each value, from the least to the greatest."""
    least, most = min(values), max(values)
    room = (most - least) or 1.0
    return "".join(_LEVELS[min(len(_LEVELS) - 1, int((value - least) / room * len(_LEVELS)))] for value in values)


def _least(buckets: "Sequence[BucketView]") -> float:
    return min(bucket.minimum for bucket in buckets if bucket.minimum is not None)


def _most(buckets: "Sequence[BucketView]") -> float:
    return max(bucket.maximum for bucket in buckets if bucket.maximum is not None)


def _mean(buckets: "Sequence[BucketView]") -> float:
    known = [(bucket.mean, bucket.count) for bucket in buckets if bucket.mean is not None]
    return sum(mean * count for mean, count in known) / sum(count for _, count in known)


COMMANDS: Commands = {"hardware": hardware_command}
