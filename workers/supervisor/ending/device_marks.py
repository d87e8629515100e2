"""What an ended attempt leaves in the history of its devices: their speed, and faults of the hardware."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from jobs.model.device_history import DeviceMark
from jobs.model.records import DeviceRecord
from jobs.model.spec import JobSpec, RecipeProgram
from jobs.splits.device_marks import DeviceTimes, mark_measured_devices
from workers.runtime.launch import AttemptConfig
from workers.supervisor.ending.outcome import AttemptOutcome

log = structlog.get_logger(__name__)

#: Errors that a sound device does not give, whatever program runs on it.
_HARDWARE_FAULTS = (
    (r"uncorrectable ECC error", "an uncorrectable ECC error"),
    (r"uncorrectable NVLink error", "an uncorrectable NVLink error"),
    (r"[Ff]allen off the bus|GPU is lost", "the GPU fell off the bus"),
    (r"hardware stack error", "a hardware stack error"),
    (r"row remap\w* (failure|failed)", "its memory could not be repaired"),
)


def mark_devices(
    config: AttemptConfig,
    devices: Mapping[int, Sequence[DeviceRecord]],
    times: DeviceTimes | None,
    outcome: AttemptOutcome,
) -> dict[int, dict[int, DeviceMark]]:
    """A mark for each device that there is anything to say about, by its part and its index on that part's node.
    `devices` are those of each part. The history does without if that fails: an end is written in any case."""
    placed = [(part, device) for part in sorted(devices) for device in devices[part]]
    fault = _hardware_fault(outcome.error)
    failed = outcome.error["rank"] if fault and outcome.error is not None else None
    found: dict[int, dict[int, DeviceMark]] = {}
    marks = _measured_marks(len(placed), config, times)
    for logical, ((part, device), mark) in enumerate(zip(placed, marks, strict=True)):
        if fault and (failed == logical or not config.is_distributed):
            mark = DeviceMark(mark.relative, mark.ms_per_row, mark.slow, fault)
        if mark != DeviceMark():
            found.setdefault(part, {})[device.index] = mark
    return found


def _measured_marks(devices: int, config: AttemptConfig, times: DeviceTimes | None) -> list[DeviceMark]:
    unknown = [DeviceMark() for _ in range(devices)]
    try:
        marks = mark_measured_devices(times, _planted_straggler(config.spec)) if times is not None else unknown
    except Exception:
        log.exception("devices_not_marked")
        return unknown
    return marks if len(marks) == len(unknown) else unknown


def _planted_straggler(spec: JobSpec) -> int | None:
    straggler = spec.program.straggler if isinstance(spec.program, RecipeProgram) else None
    if straggler is None:
        return None
    return straggler.device if straggler.device is not None else straggler.rank


def _hardware_fault(error: dict[str, Any] | None) -> str:
    """The fault of a device that an attempt failed of; "" for all other errors."""
    text = f"{error.get('message')}\n{error.get('traceback')}" if error is not None else ""
    return next((words for pattern, words in _HARDWARE_FAULTS if re.search(pattern, text)), "")
