"""Sentences that summarise a report: they are shown above the pictures, and screen readers read them."""

from collections.abc import Iterator, Sequence

from shardyard.contract.report import Report
from shardyard.render.svg.highlights import idle_devices, others_ms, slow_device, typical_ms
from shardyard.render.text_tables import describe_devices, format_measure

#: Sentences and groups of devices are counted up to this many; the rest is one "more".
_MOST = 4


def what_it_is(report: Report) -> str:
    """ "dp on 8 virtual cpu devices, attempt 1, final"."""
    devices = describe_devices(len(report.devices), report.device_kind, virtual=report.virtual)
    end = "final" if report.final else "so far: it has not ended"
    return f"{report.strategy} on {devices}, attempt {report.attempt}, {end}"


REHEARSAL = "Rehearsal: the devices only acted as GPUs; splits are theirs, times and memory are the CPU's."


def describe_verdicts(report: Report) -> list[str]:
    """Sentences about the marks in the pictures, the most important first; empty if there are none."""
    return [*_describe_idle(report), *_describe_slow(report)]


def kind_of(verdict: str) -> str:
    """ "idle" or "slow": how a sentence of `verdicts` is marked."""
    return verdict.partition(":")[0].lower()


def _describe_idle(report: Report) -> Iterator[str]:
    groups: dict[tuple[int, int], list[int]] = {}
    for device in idle_devices(report.per_device):
        groups.setdefault((device.idle_steps, device.steps), []).append(device.device)
    if not groups:
        return
    worst = sorted(groups.items(), reverse=True)
    listed = "; ".join(f"{devices_in_words(found)} in {_some_of(*steps)}" for steps, found in worst[:_MOST])
    more = sum(len(found) for _, found in worst[_MOST:])
    yield f"Idle: {listed}{f'; and {more} more devices in fewer' if more else ''}."


def _describe_slow(report: Report) -> Iterator[str]:
    slow = slow_device(report)
    if slow is None:
        return
    here, there = format_measure(typical_ms(report)[slow]), format_measure(others_ms(report, slow))
    why = _WHY[report.balance.cause or "compute"]
    yield f"Slow: device {slow} takes {here} ms for a typical step, the others {there} ms; {why}."


_WHY = {"input": "most of it waits for data", "compute": "its computing takes longer"}


def devices_in_words(devices: Sequence[int]) -> str:
    """ "device 3", "devices 5 to 7", "devices 0, 2 and 4 to 6"."""
    runs: list[tuple[int, int]] = []
    for device in sorted(devices):
        if runs and runs[-1][1] == device - 1:
            runs[-1] = runs[-1][0], device
        else:
            runs.append((device, device))
    parts = [part for first, last in runs for part in _device_run(first, last)]
    if len(parts) > 2 * _MOST:
        parts = [*parts[: 2 * _MOST], f"{len(parts) - 2 * _MOST} more"]
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{'device' if len(devices) == 1 else 'devices'} {listed}"


def _device_run(first: int, last: int) -> list[str]:
    if last - first < 2:
        return [str(device) for device in range(first, last + 1)]
    return [f"{first} to {last}"]


def _some_of(some: int, every: int) -> str:
    if some == every:
        return "every step" if every > 1 else "the only step"
    return f"{some:,} of {every:,} steps"
