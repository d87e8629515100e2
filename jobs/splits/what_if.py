"""What a run would take without its slow devices, for the report's `what_if` (`jobs.splits.even_steps`)."""

from collections.abc import Sequence

from jobs.splits.device_sums import DeviceSums
from jobs.splits.even_steps import EvenSteps
from shardyard.contract.report import WhatIf


def predict_even_run(
    steps: EvenSteps, devices: Sequence[DeviceSums], slowest: int, wall_ms: float, scale: float
) -> WhatIf | None:
    """The what-if of a run of `wall_ms`. `scale`: all steps over those of `steps`."""
    gained_ms = max(0.0, steps.gained_ms * scale)
    even_ms = wall_ms - gained_ms
    if even_ms <= 0:
        return None
    slow = steps.slow_devices() | {slowest}
    peers = [device for at, device in enumerate(devices) if at not in slow]
    excess = {name: max(0.0, ms * scale) for name, ms in _excess_ms(devices, devices[slowest], peers).items()}
    known_ms = sum(excess.values())
    shrink = min(1.0, gained_ms / known_ms) if known_ms else 0.0
    parts = {name: round(ms * shrink / even_ms, 6) for name, ms in excess.items()}
    rest = round(max(0.0, gained_ms - known_ms * shrink) / even_ms, 6)
    return WhatIf(round(wall_ms / even_ms, 6), slowest, parts["rows"], parts["compute"], parts["input"], rest)


def _excess_ms(devices: Sequence[DeviceSums], slowest: DeviceSums, peers: Sequence[DeviceSums]) -> dict[str, float]:
    """By how much a device exceeds its peers, and the mean of all in rows."""
    rows = sum(device.covered_rows for device in peers)
    mean_rows = sum(device.covered_rows for device in devices) / len(devices)
    wait_ms = sum(device.covered_wait_ms for device in peers) / len(peers) if peers else slowest.covered_wait_ms
    row_ms = sum(device.covered_ms for device in peers) / rows if rows else 0.0
    return {
        "rows": row_ms * (slowest.covered_rows - mean_rows),
        "compute": slowest.covered_ms - row_ms * slowest.covered_rows,
        "input": slowest.covered_wait_ms - wait_ms,
    }
