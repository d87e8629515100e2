import re

import msgspec
import pytest

from shardyard.render.svg.captions import describe_verdicts, devices_in_words
from shardyard.render.svg.highlights import slow_device
from tests.support.svg_reading import changed, example, many, with_times


def test_the_device_that_the_others_wait_for_is_slow() -> None:
    straggler = example("straggler-on-rank-1")
    assert slow_device(straggler) == 1
    (said,) = describe_verdicts(straggler)
    assert re.fullmatch(
        r"Slow: device 1 takes 5\d\.\d ms for a typical step, the others \d\.\d+ ms; most of it waits for data\.", said
    )


@pytest.mark.parametrize("cause", ["rows", "communication", "none", None])
def test_a_device_is_not_slow_where_the_report_names_another_cause(cause: str | None) -> None:
    found = example("straggler-on-rank-1")
    balance = msgspec.structs.replace(found.balance, cause=cause)
    assert slow_device(changed(found, balance=balance)) is None


def test_the_slowest_of_equals_is_not_slow() -> None:
    found = example("side-by-side-dp")
    found = changed(found, balance=msgspec.structs.replace(found.balance, slowest_device=0, cause="compute"))
    assert slow_device(with_times(found, forward_ms=[1.2, 1.0, 1.0, 1.0], backward_ms=[1.0] * 4)) is None
    assert slow_device(with_times(found, forward_ms=[2.2, 1.0, 1.0, 1.0], backward_ms=[1.0] * 4)) == 0


def test_a_few_steps_do_not_make_a_device_slow() -> None:
    """The first calls of a process are slow for everybody."""
    found = example("rows-on-4-ranks")
    assert found.balance.slowest_device is not None
    assert slow_device(found) is None


def test_idle_devices_are_told_by_how_often() -> None:
    assert describe_verdicts(example("rows-on-8-devices")) == ["Idle: devices 5 to 7 in 1 of 4 steps."]
    assert describe_verdicts(example("ten-for-eight")) == ["Idle: devices 5 to 7 in every step."]
    assert describe_verdicts(example("three-of-thirty")) == []


def test_a_sentence_about_very_many_devices_stays_one_sentence() -> None:
    (said,) = describe_verdicts(many(1024, 1))
    assert said.startswith("Idle: devices 2, 5, 8, ")
    assert len(said) < 200


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ([3], "device 3"),
        ([3, 4], "devices 3 and 4"),
        ([7, 5, 6], "devices 5 to 7"),
        ([0, 2, 4, 5, 6], "devices 0, 2 and 4 to 6"),
        (list(range(0, 40, 2)), "devices 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_devices_in_words(devices: list[int], said: str) -> None:
    assert devices_in_words(devices) == said
