"""How the command line writes quantities: pure functions from values to short text."""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shardyard.contract.plain_text import escape_unsafe

if TYPE_CHECKING:
    from shardyard.contract.responses import PlacementView

SHORT_ID_DIGITS = 8
_WHOLE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LABEL = re.compile(r"^(\w+):(\d+)$")


def format_duration(seconds: float | None) -> str:
    """`0.42 s`, `12.3 s`, `2 min 05 s`, `3 h 07 min`, `2 d 04 h`; `-` for None."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, smaller, name in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller:02d} {name}"
    return f"{whole} s"


def format_age(seconds: float | None) -> str:
    """How long ago something was, in one unit: `12 s`, `5 min`, `3 h`, `2 d`; `-` for None."""
    if seconds is None:
        return "-"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def short_id(job: str) -> str:
    """The last eight digits of an id, by which a job can be named: ids of one minute begin alike."""
    return job[-SHORT_ID_DIGITS:]


def is_whole_id(reference: str) -> bool:
    """Whether this is the id of a job, rather than a part of one or a name."""
    return _WHOLE_ID.fullmatch(reference) is not None


def seconds_between(start: datetime | None, end: datetime | None, now: datetime | None = None) -> float | None:
    """Seconds from `start` to `end`, or to now while there is no end; None before the start."""
    if start is None:
        return None
    return ((end or now or datetime.now(UTC)) - start).total_seconds()


def local_time(when: datetime | None) -> str:
    """A time on this machine's clock, to the second."""
    return "-" if when is None else when.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def byte_count(count: float | None) -> str:
    """`512 B`, `1.5 GiB`; `-` for None."""
    if count is None:
        return "-"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_number(value: float | None) -> str:
    """At most four significant digits, so that a live line keeps its width; `-` for None."""
    return "-" if value is None else f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def place_names(places: Iterable["PlacementView"]) -> list[str]:
    """Nodes, each with its devices in short."""
    return [f"{place.node} {device_names(place.devices)}" for place in places]


def device_names(labels: Iterable[str]) -> str:
    """Runs of devices in short: `cuda:0-3,6` for cuda:0, cuda:1, cuda:2, cuda:3, cuda:6."""
    indexes: dict[str, list[int]] = {}
    others = []
    for label in labels:
        match = _LABEL.match(label)
        if match:
            indexes.setdefault(match[1], []).append(int(match[2]))
        else:
            others.append(label)
    return " ".join([f"{kind}:{_number_ranges(sorted(found))}" for kind, found in indexes.items()] + others) or "-"


def single_line(words: str) -> str:
    """Untrusted text on one line, with control characters, which a terminal would obey, written out."""
    return words if words.isprintable() else escape_unsafe(re.sub(r"\s", " ", words))


def log_line(device: int, text: str) -> str:
    """A line of a device's log as it is printed."""
    return f"{device}| " + escape_unsafe(text, keep="\t")


def devices_on_nodes(devices: int, nodes: int) -> str:
    """What a job asks for, in short: `4`, or `4 x 2 nodes` for 4 devices of each of two nodes."""
    return str(devices) if nodes == 1 else f"{devices} x {nodes} nodes"


def count_noun(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _number_ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for each in numbers:
        if runs and runs[-1][1] == each - 1:
            runs[-1][1] = each
        else:
            runs.append([each, each])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
