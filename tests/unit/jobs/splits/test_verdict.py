"""The one sentence on a whole run."""

import pytest

from jobs.splits.verdict import describe_run
from shardyard.contract.report import DeviceMeasures, Timing, WhatIf


def device(*, steps: int = 100, **totals_ms: float) -> DeviceMeasures:
    parts: dict[str, Timing | None] = {name: Timing(total, 1.0, 1.0, steps, 0.0) for name, total in totals_ms.items()}
    missing = dict.fromkeys(("forward_ms", "backward_ms", "data_wait_ms", "comm_ms"))
    fixed = {"device": 0, "rows": 1, "share": 1.0, "steps": steps, "idle_steps": 0}
    return DeviceMeasures(**fixed, ms_per_row=None, memory_peak_bytes=None, **(missing | parts))  # type: ignore[arg-type]


def test_a_run_without_a_step_has_no_verdict_on_times() -> None:
    assert describe_run([device(steps=0)], None) == "No step has been measured."
    assert describe_run([], None) == "No step has been measured."


def test_a_run_that_works_says_how_much() -> None:
    busy = device(forward_ms=40.0, backward_ms=40.0, optimizer_ms=10.0, data_wait_ms=5.0, other_ms=5.0)

    assert describe_run([busy], None) == "90% of the devices' time goes into forward, backward and optimizer."


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("data_wait_ms", "waiting for batches"),
        ("comm_ms", "communication and waiting for each other"),
        ("other_ms", "the program's own code, its start and its evaluation"),
    ],
)
def test_the_largest_of_what_is_no_work_is_named(part: str, words: str) -> None:
    small = {"data_wait_ms": 11.0, "comm_ms": 0.0, "other_ms": 9.0, "forward_ms": 20.0} | {part: 60.0}

    assert f"goes into {words}" in describe_run([device(steps=100, **small)], None)


@pytest.mark.parametrize(
    ("what_if", "words"),
    [
        (WhatIf(1.31, 3, 0.21, 0.10, 0.0, 0.0), "Device 3 holds the others up: the run takes 1.31 times as long"),
        (WhatIf(1.31, 3, 0.21, 0.10, 0.0, 0.0), "mostly because it gets more rows."),
        (WhatIf(1.31, 3, 0.0, 0.31, 0.0, 0.0), "mostly because it takes longer for a row."),
        (WhatIf(1.31, 3, 0.0, 0.0, 0.31, 0.0), "mostly because it waits longer for its input."),
        (WhatIf(1.31, 3, 0.0, 0.01, 0.0, 0.3), "Devices wait for each other, now for one and now for another"),
        (WhatIf(1.09, 3, 0.09, 0.0, 0.0, 0.0), "goes into forward, backward and optimizer."),
    ],
)
def test_a_device_that_holds_the_others_up_comes_first(what_if: WhatIf, words: str) -> None:
    assert words in describe_run([device(forward_ms=90.0, comm_ms=5.0)], what_if)
