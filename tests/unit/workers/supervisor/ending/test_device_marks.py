"""What an ended attempt leaves in the history of its devices."""

from typing import Any

import msgspec
import pytest

from jobs.model.device_history import DeviceMark
from jobs.model.records import DeviceRecord
from jobs.model.state import StateReason
from jobs.splits.device_marks import DeviceTimes
from tests.support.samples.attempts import a_launch
from tests.support.samples.timed_streams import Machine, Plant, ddp_run
from workers.runtime.launch import AttemptConfig
from workers.supervisor.ending.device_marks import mark_devices
from workers.supervisor.ending.outcome import AttemptOutcome

DONE = AttemptOutcome(StateReason.COMPLETED)


def times_of(plant: Plant | None) -> DeviceTimes:
    told = ddp_run(2, 300, 7, plant, Machine(drift=0.005))
    return DeviceTimes(told.make_report(final=True), told.own_row_times())


def failed(message: str, rank: int = 1) -> AttemptOutcome:
    error: dict[str, Any] = {"rank": rank, "message": message, "traceback": None}
    return AttemptOutcome(StateReason.RANK_FAILED, message, error)


def placed(*indexes: int) -> tuple[DeviceRecord, ...]:
    """Devices of a node, of the kind that those of `a_launch` are."""
    (device, *_) = a_launch().devices
    return tuple(msgspec.structs.replace(device, index=index) for index in indexes)


def marks_of(launch: AttemptConfig, times: DeviceTimes | None, outcome: AttemptOutcome) -> dict[int, DeviceMark]:
    """Those of the devices of the one node that there is."""
    found = mark_devices(launch, {0: launch.devices}, times, outcome)
    assert set(found) <= {0}
    return found.get(0, {})


def test_marks_go_by_the_indexes_on_the_node() -> None:
    marks = mark_devices(a_launch(), {0: placed(5, 6)}, times_of(Plant(1, "forward", 0.5)), DONE)
    assert {index: mark.slow for index, mark in marks[0].items()} == {5: False, 6: True}


def test_devices_of_other_nodes_have_their_marks_by_part() -> None:
    parts = {1: placed(0), 0: placed(3)}
    marks = mark_devices(a_launch(), parts, times_of(Plant(1, "forward", 0.5)), DONE)
    slow = {part: {index: mark.slow for index, mark in of_part.items()} for part, of_part in marks.items()}
    assert slow == {0: {3: False}, 1: {0: True}}
    fault = failed("CUDA error: uncorrectable ECC error encountered")
    assert mark_devices(a_launch(), parts, None, fault) == {1: {0: DeviceMark(error="an uncorrectable ECC error")}}


def test_an_attempt_of_which_nothing_is_known_leaves_no_marks() -> None:
    assert marks_of(a_launch(), None, DONE) == {}
    assert marks_of(a_launch(), None, failed("RuntimeError: CUDA error: out of memory")) == {}


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("CUDA error: uncorrectable ECC error encountered", "an uncorrectable ECC error"),
        ("Unable to determine the device handle: GPU is lost. Reboot", "the GPU fell off the bus"),
    ],
)
def test_a_fault_of_the_hardware_is_the_failed_ranks_device(message: str, fault: str) -> None:
    assert marks_of(a_launch(), None, failed(message)) == {1: DeviceMark(error=fault)}
    of_all = marks_of(a_launch(strategy="dp"), None, failed(message, rank=0))
    assert of_all == {index: DeviceMark(error=fault) for index in (0, 1)}


def test_a_report_that_cannot_be_read_costs_no_end() -> None:
    assert marks_of(a_launch(devices=3), times_of(None), DONE) == {}
