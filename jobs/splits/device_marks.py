"""What an attempt's report says about its devices themselves, for their history: how fast each was among its peers."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from jobs.model.device_history import DeviceMark
from shardyard.contract.report import Finding, Report

#: A device that a finding calls slow is slow beside its own kind, in this attempt. The finding looks at typical steps,
#: and has a higher bound; hiccups of its peers lower this ratio, which is of all steps.
MIN_RELATIVE = 1.02


@dataclass(frozen=True, slots=True)
class DeviceTimes:
    """A final report, and milliseconds for a row on each device. A report that goes on from a checkpoint has steps of
    earlier attempts in it, perhaps on other devices; these times are of the attempt alone."""

    report: Report
    ms_per_row: Sequence[float | None]


def mark_measured_devices(measured: DeviceTimes, straggler: int | None = None) -> list[DeviceMark]:
    """A mark for each device of an attempt. `straggler` is the device that is slow on purpose."""
    report, times = measured.report, measured.ms_per_row
    kinds = [device.name for device in report.devices]
    named = {_slow_by_computing(finding) for finding in report.findings} - {straggler}
    marks = []
    for device, ms_per_row in enumerate(times):
        relative = _relative_to_peers(device, times, kinds)
        slow = device in named and relative is not None and relative >= MIN_RELATIVE
        marks.append(DeviceMark(relative=relative, ms_per_row=ms_per_row, slow=slow))
    return marks


def _relative_to_peers(device: int, times: Sequence[float | None], kinds: Sequence[str]) -> float | None:
    """The time of a row over the median of the other devices of the same kind; None where there is none."""
    own = times[device]
    peers = [
        time
        for other, time in enumerate(times)
        if time is not None and other != device and kinds[other] == kinds[device]
    ]
    if own is None or not peers or not median(peers):
        return None
    return round(own / median(peers), 4)


def _slow_by_computing(finding: Finding) -> int | None:
    """The device that a finding calls slow, unless what it waits for is the cause."""
    numbers = finding.numbers
    if finding.code != "slow-device" or numbers["input_ms"] > numbers["compute_ms"]:
        return None
    return int(numbers["device"])
