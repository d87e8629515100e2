"""What a report says about its devices themselves, for their history."""

from dataclasses import replace

import msgspec

from jobs.splits.device_marks import DeviceTimes, mark_measured_devices
from tests.support.samples.timed_streams import Machine, Plant, ddp_run

EVEN = Machine(drift=0.005)


def times_of(devices: int, plant: Plant | None = None, steps: int = 300, seed: int = 7) -> DeviceTimes:
    told = ddp_run(devices, steps, seed, plant, EVEN)
    return DeviceTimes(told.make_report(final=True), told.own_row_times())


def test_a_device_is_held_against_the_median_of_its_peers() -> None:
    marks = mark_measured_devices(times_of(4, Plant(1, "backward", 0.5)))
    assert [mark.slow for mark in marks] == [False, True, False, False]
    ratios = [mark.relative for mark in marks]
    assert ratios[1] is not None
    assert 1.4 < ratios[1] < 1.8
    assert all(ratio is not None and 0.9 < ratio < 1.1 for n, ratio in enumerate(ratios) if n != 1)
    assert all(mark.ms_per_row is not None for mark in marks)


def test_slow_input_and_stragglers_on_purpose_are_no_faults_of_a_device() -> None:
    assert not any(mark.slow for mark in mark_measured_devices(times_of(2, Plant(1, "wait", 0.5))))
    planted = times_of(2, Plant(1, "forward", 0.5))
    assert [mark.slow for mark in mark_measured_devices(planted)] == [False, True]
    assert not any(mark.slow for mark in mark_measured_devices(planted, straggler=1))


def test_devices_of_other_kinds_are_no_peers() -> None:
    told = times_of(2, Plant(1, "forward", 0.5))
    unlike = tuple(msgspec.structs.replace(device, name=f"card {device.device}") for device in told.report.devices)
    marks = mark_measured_devices(replace(told, report=msgspec.structs.replace(told.report, devices=unlike)))
    assert [(mark.relative, mark.slow) for mark in marks] == [(None, False)] * 2


def test_times_are_those_of_the_report_or_of_the_steps_after_its_checkpoint() -> None:
    slow = ddp_run(2, 300, 7, Plant(1, "forward", 0.5), EVEN)
    assert slow.own_row_times() == [one.ms_per_row for one in slow.make_report(final=False).per_device]
    resumed = ddp_run(2, 0, 0, None, EVEN)
    resumed.load_state(slow.dump_state())
    assert resumed.own_row_times() == [None, None]


def test_a_quiet_run_has_no_slow_device() -> None:
    marks = [mark_measured_devices(times_of(3, None, 60, seed)) for seed in range(4)]
    assert not any(mark.slow for each in marks for mark in each)
