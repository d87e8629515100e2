"""The rules that mark devices as slow or idle, from the numbers of a report. The dashboard has the same rules."""

from collections.abc import Iterable
from statistics import median

from shardyard.contract.report import DeviceMeasures, Report

#: Causes in the report's balance that speak of a device that is slow itself. With "rows" it only got more of them.
SLOW_CAUSES = frozenset({"compute", "input"})
#: A device is called slow when its typical step takes this many times the typical step of the others ...
SLOW_FROM = 1.25
#: ... over at least so many steps: the first calls of a process are slow for everybody.
SLOW_STEPS = 10


def slow_device(report: Report) -> int | None:
    """The device that the others wait for: the slowest one, where its computing or its input costs most, and its
    typical step (data wait, forward and backward, each by its p50) is notably longer than theirs."""
    slowest = report.balance.slowest_device
    if slowest is None or report.balance.cause not in SLOW_CAUSES:
        return None
    typical = typical_ms(report)
    if slowest not in typical or len(typical) < 2:
        return None
    return slowest if typical[slowest] >= SLOW_FROM * others_ms(report, slowest) > 0 else None


def typical_ms(report: Report) -> dict[int, float]:
    """Milliseconds of a typical step, for each device that had enough: data wait, forward and backward by their p50."""
    busy = (one for one in report.per_device if one.steps - one.idle_steps >= SLOW_STEPS)
    times = ((one.device, (one.data_wait_ms, one.forward_ms, one.backward_ms)) for one in busy)
    return {device: sum(timing.p50 for timing in parts if timing is not None) for device, parts in times}


def others_ms(report: Report, device: int) -> float:
    """Milliseconds of a typical step of the other devices: their median. There must be another."""
    return median(ms for other, ms in typical_ms(report).items() if other != device)


def idle_devices(devices: Iterable[DeviceMeasures]) -> list[DeviceMeasures]:
    """Devices that got nothing in some step of the main phase."""
    return [device for device in devices if device.idle_steps]
