"""The history of a device as `shardyard nodes --history` prints it, and what `shardyard nodes` says of suspects."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from shardyard import formatting
from shardyard.cli.common import make_console, make_table

if TYPE_CHECKING:
    from shardyard.contract.fleet import DeviceHistory, DeviceHistoryLine, NodeView


def suspicion_lines(nodes: Iterable["NodeView"]) -> Iterator[str]:
    """Devices that should be checked, a line for each: why, and what to do."""
    for node in nodes:
        for device in node.devices:
            if device.suspected is not None:
                yield (
                    f"{node.id} {device.label} was {device.suspected}. Look at it (shardyard nodes --history "
                    f"{node.id}:{device.label}), check its clock, temperature and errors, or put it into quarantine "
                    f"(shardyard quarantine {node.id} {device.label} --reason slow)"
                )


def print_device_history(history: "DeviceHistory") -> None:
    out = make_console()
    where = f"{history.node} {history.label}" if history.node else history.id
    what = ", ".join(part for part in (history.name, history.state or "on no node at present") if part)
    out.print(f"{where} ({what})", soft_wrap=True)
    if history.suspected is not None:
        out.print(f"It was {history.suspected}.", soft_wrap=True)
    if not history.lines:
        out.print("No attempt has recorded anything about it yet.")
        return
    listing = make_table("WHEN", "JOB", "#IN USE", "#PEERS", "#MS A ROW", "#TO PEERS", "", "ENDED")
    for line in history.lines:
        listing.add_row(*_row(line))
    out.print(listing)
    if history.next is not None:
        out.print("There is more: GET /v1/devices/{id}/history has a cursor.")


def _row(line: "DeviceHistoryLine") -> tuple[str | Text, ...]:
    when = formatting.local_time(line.at) if line.at is not None else ""
    if line.event != "attempt":
        told = f"{line.event} by the {'operator' if line.by == 'operator' else 'service'}"
        return when, "", "", "", "", "", "", Text(told + (f": {line.quarantine}" if line.quarantine else ""), "yellow")
    relative = line.relative_ms_per_row
    return (
        when,
        line.job or "",
        formatting.format_duration(line.hours * 3600),
        str(line.peers),
        "" if line.ms_per_row is None else f"{line.ms_per_row:.4g}",
        "" if relative is None else f"{relative:.2f}",
        Text("slow", "yellow") if line.slow else "",
        Text(f"{line.reason}: {line.error}", "red") if line.error else line.reason or "",
    )
