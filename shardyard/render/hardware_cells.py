"""The hardware of a report as cells of a table, one line for each device: for text and for HTML."""

from collections.abc import Iterator, Sequence

from shardyard.contract.hardware import DeviceHardware
from shardyard.render.text_tables import NOT_MEASURED, format_bytes, format_measure

#: What the columns show.
CAPTION = "mean values; of memory and temperature the most that was seen"
#: Titles of the columns, each with the series that it shows, and which of its numbers. Those of processes are last.
_COLUMNS = (
    ("GPU busy", "utilisation", "mean"),
    ("GPU memory", "memory_used_bytes", "maximum"),
    ("power", "power_watts", "mean"),
    ("energy", "power_watts", "integral"),
    ("temp.", "temperature_celsius", "maximum"),
    ("SM clock", "sm_clock_mhz", "mean"),
    ("CPU cores", "cpu_cores", "mean"),
    ("CPU time", "cpu_cores", "integral"),
    ("resident", "resident_bytes", "maximum"),
)
#: Of integrals: the unit, a smaller one, and how many of that it is.
_INTEGRAL_UNITS = {"power_watts": ("Wh", "J", 3600), "cpu_cores": ("core-h", "core-s", 3600)}


def hardware_cells(devices: Sequence[DeviceHardware]) -> list[list[str]]:
    """The heads, then a row for each device; columns that no device has are left out."""
    shown = [column for column in _COLUMNS if any(column[1] in one.series for one in devices)]
    rows = [[str(one.device), *(_cell(one, name, number) for _, name, number in shown)] for one in devices]
    return [["device", *(title for title, _, _ in shown)], *rows]


def hardware_remarks(devices: Sequence[DeviceHardware]) -> Iterator[str]:
    """What was wrong with devices: clocks that were held down, and errors."""
    for one in devices:
        if one.throttled:
            reasons = ", ".join(f"{reason} {share:.0%}" for reason, share in sorted(one.throttled.items()))
            yield f"device {one.device} was throttled: {reasons} of the time"
        if one.errors:
            errors = ", ".join(f"{name} {count:,}" for name, count in sorted(one.errors.items()))
            yield f"device {one.device} had errors: {errors}"


def format_series_value(name: str, value: float) -> str:
    """A value of a series with its unit: "87%", "12.3 GiB", "312 W"."""
    if name == "utilisation":
        return f"{value:.0%}"
    if name.endswith("_bytes"):
        return format_bytes(round(value))
    return format_measure(value) + _UNITS.get(name, "")


_UNITS = {"power_watts": " W", "temperature_celsius": " °C", "sm_clock_mhz": " MHz", "memory_clock_mhz": " MHz"}


def _cell(device: DeviceHardware, name: str, number: str) -> str:
    series = device.series.get(name)
    if series is None:
        return NOT_MEASURED
    value: float = getattr(series, number)
    if number == "integral":
        whole, part, parts = _INTEGRAL_UNITS[name]
        return f"{format_measure(value)} {whole}" if value >= 0.1 else f"{format_measure(value * parts)} {part}"
    return format_series_value(name, value)
