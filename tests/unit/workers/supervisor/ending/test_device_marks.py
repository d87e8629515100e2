"""What an ended attempt leaves in the history of its devices."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from jobs.model.device_history import DeviceMark
from jobs.model.state import StateReason
from jobs.splits.device_marks import DeviceTimes
from tests.support.attempts import a_launch
from tests.support.timed_streams import Machine, Plant, ddp_run
from workers.supervisor.ending.device_marks import mark_devices
from workers.supervisor.ending.outcome import AttemptOutcome

DONE = AttemptOutcome(StateReason.COMPLETED)


def times_of(plant: Plant | None) -> DeviceTimes:
    told = ddp_run(2, 300, 7, plant, Machine(drift=0.005))
    return DeviceTimes(told.make_report(final=True), told.own_row_times())


def failed(message: str, rank: int = 1) -> AttemptOutcome:
    error: dict[str, Any] = {"rank": rank, "message": message, "traceback": None}
    return AttemptOutcome(StateReason.RANK_FAILED, message, error)


def test_marks_go_by_the_indexes_on_the_node() -> None:
    told = times_of(Plant(1, "forward", 0.5))
    launch = a_launch()
    launch = replace(launch, devices=tuple(msgspec.structs.replace(one, index=one.index + 5) for one in launch.devices))
    marks = mark_devices(launch, told, DONE)
    assert {index: mark.slow for index, mark in marks.items()} == {5: False, 6: True}


def test_an_attempt_of_which_nothing_is_known_leaves_no_marks() -> None:
    assert mark_devices(a_launch(), None, DONE) == {}
    assert mark_devices(a_launch(), None, failed("RuntimeError: CUDA error: out of memory")) == {}


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("CUDA error: uncorrectable ECC error encountered", "an uncorrectable ECC error"),
        ("Unable to determine the device handle: GPU is lost. Reboot", "the GPU fell off the bus"),
    ],
)
def test_a_fault_of_the_hardware_is_the_failed_ranks_device(message: str, fault: str) -> None:
    assert mark_devices(a_launch(), None, failed(message)) == {1: DeviceMark(error=fault)}
    of_all = mark_devices(a_launch(strategy="dp"), None, failed(message, rank=0))
    assert of_all == {index: DeviceMark(error=fault) for index in (0, 1)}


def test_a_report_that_cannot_be_read_costs_no_end() -> None:
    assert mark_devices(a_launch(devices=3), times_of(None), DONE) == {}
