"""Steps that are fed together make the report that they make one by one, to the last bit."""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from jobs.model.spec import JobSpec
from jobs.protocol.records import PrimitiveTimes, Step
from tests.support.samples.record_streams import aggregator, split, step
from tests.support.samples.specs import make_spec
from workers.supervisor.report.recipe_aggregator import RecipeAggregator
from workers.supervisor.report.shard_lines import ShardLine

STEPS = 60


def some(chance: random.Random) -> float | None:
    return chance.choice([chance.random() * 9, chance.random() * 9, None, math.nan])


def made(rank: int, devices: Sequence[int], chance: random.Random) -> list[Step]:
    """Steps of two splits, whose times are measured here and there, and sometimes cannot be; evaluation in between."""
    steps = []
    evaluated = 0
    for number in range(STEPS):
        which = number % 5 == 4
        rows = [3 + which] * len(devices)
        times: dict[str, Any] = {
            name: tuple(some(chance) for _ in devices) for name in ("forward_ms", "backward_ms", "arrival_ms")
        }
        if number < 20:
            times["backward_ms"] = (None,) * len(devices)  # nobody has measured it yet
        primitives = PrimitiveTimes(1.0, 2.0, chance.random(), 4.0) if len(devices) > 1 and number % 3 else None
        fields: dict[str, Any] = {"comm_ms": some(chance), "data_wait_ms": some(chance), "primitives": primitives}
        fields["step_ms"] = 20 + chance.random()
        memory = tuple(chance.randrange(10**9) if number % 10 == 0 else None for _ in devices)
        one = step(number, [int(which)], rows, epoch=number // 20, memory_peak_bytes=memory, **times, **fields)
        steps.append(one)
        if number % 20 == 19:
            for _ in range(2 + rank):
                steps.append(step(evaluated, [2], [5] * len(devices), phase="eval", epoch=number // 20))
                evaluated += 1
    return steps


def fed(spec: JobSpec, by_rank: list[tuple[int, list[int]]], size: int) -> tuple[RecipeAggregator, list[ShardLine]]:
    """A report of ranks (each with its devices) that send so many steps at once, in turns; size 0: by `feed`."""
    told = aggregator(spec, None)
    lines: list[ShardLine] = []
    sent = {}
    for rank, devices in by_rank:
        for number, (rows, phase) in enumerate([(3, "train"), (4, "train"), (5, "eval")]):
            told.add_record(rank, split(number, devices, [rows] * len(devices), phase))
        sent[rank] = made(rank, devices, random.Random(rank))
    for start in range(0, 2 * STEPS, max(size, 1)):
        for rank, steps in sent.items():
            part = steps[start : start + max(size, 1)]
            if size and part:
                lines += told.add_steps(rank, part)
            elif part:
                lines += told.add_record(rank, part[0])
    return told, lines


CASES = {
    "one rank": (make_spec("single", 1, 3), [(0, [0])]),
    "three ranks": (make_spec("ddp", 3, 3), [(0, [0]), (1, [1]), (2, [2])]),
    "one rank with two devices": (make_spec("dp", 2, 6), [(0, [0, 1])]),
    "two ranks, every step printed": (make_spec("ddp", 2, 3, observe="every"), [(0, [0]), (1, [1])]),
}


@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("name", CASES)
def test_steps_fed_together_make_the_same_report_and_the_same_lines(name: str, size: int) -> None:
    one_by_one, lines = fed(*CASES[name], 0)
    together, same_lines = fed(*CASES[name], size)

    by_device = lambda line: (line.device, line.phase, line.step)  # noqa: E731
    assert sorted(same_lines, key=by_device) == sorted(lines, key=by_device)
    assert together.dump_state() == one_by_one.dump_state()
    assert together.make_report(final=True) == one_by_one.make_report(final=True)
    assert together.make_report(final=True).balance.wasted_device_seconds is not None
