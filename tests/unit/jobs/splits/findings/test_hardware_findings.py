"""Findings about hardware: each on a run that has the fault, and on none that does not."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from jobs.protocol.hardware import StrayContext
from jobs.protocol.records import DeviceInfo, ProgramBegan
from jobs.splits.findings.hardware_findings import CODES
from shardyard.contract.report import Finding
from tests.support.samples.hardware_samples import MIB, Course, sampled_run
from tests.support.samples.record_streams import aggregator, split, step
from tests.support.samples.script_streams import feed, loaded, told
from tests.support.samples.specs import make_spec
from workers.supervisor.report.script_aggregator import ScriptAggregator

GIB = 1024 * MIB
CARD = 80 * GIB


def script(devices: int = 1, kind: str = "cuda", strategy: str = "single") -> ScriptAggregator:
    made = told(strategy, devices, kind)
    for rank in range(devices if strategy == "ddp" else 1):
        feed(made, [split(0, (rank,), (8,))], rank)
    return made


def stepping(made: ScriptAggregator, ranks: int = 1, **times: Any) -> Callable[[int], None]:
    def add_step(number: int) -> None:
        for rank in range(ranks):
            feed(made, [step(number, [0], [8], **{"data_wait_ms": None} | times)], rank)

    return add_step


def found_in(course: Course, series: str = "memory_used_bytes", steps: int = 600) -> dict[str, Finding]:
    made = script()
    feed(made, [DeviceInfo(0, "card", CARD)])
    found = sampled_run(made, stepping(made), {0: {series: course}}, steps=steps)
    return {code: one for code, one in found.items() if code in CODES}


# -- memory-creep ----------------------------------------------------------------------------------


@pytest.mark.parametrize("series", ["memory_used_bytes", "anonymous_bytes"])
def test_memory_that_grows_with_every_step_is_found(series: str) -> None:
    found = found_in(lambda step: 4 * GIB + step * 2 * MIB, series)["memory-creep"]
    assert found.numbers["bytes_per_1000_steps"] == pytest.approx(2000 * MIB, rel=0.01)
    assert found.severity == "warning"
    assert "loss.item()" in found.suggestion


def test_a_card_that_will_be_full_is_told_when() -> None:
    found = found_in(lambda step: 40 * GIB + step * 20 * MIB)["memory-creep"]
    assert found.numbers["steps_left"] == pytest.approx((CARD - 40 * GIB) / (20 * MIB) - 600, rel=0.03)
    assert "the card is full after" in found.message


def test_growth_through_noise_is_found() -> None:
    noise = random.Random(1)
    assert "memory-creep" in found_in(lambda step: 4 * GIB + step * MIB + noise.uniform(0, 40) * MIB)


@pytest.mark.parametrize(
    "course",
    [
        lambda step: 4 * GIB,
        lambda step: 4 * GIB + min(step, 150) * 20 * MIB,  # warm-up
        lambda step: 4 * GIB * (1 - math.exp(-step / 100)),  # an allocator that fills its cache
        lambda step: 4 * GIB + math.log(step + 1) * GIB,  # ever longer sequences, ever more rarely
        lambda step: 4 * GIB + step // 150 * GIB,  # a cache that grows in steps
        lambda step: 4 * GIB + step % 100 * 20 * MIB,  # what an epoch gathers and gives back
        lambda step: 4 * GIB + (2 * GIB if step > 300 else 0),  # an evaluation in the middle
        lambda step: 4 * GIB + step * MIB // 32,  # 19 MiB in all
        lambda step: 64 * GIB + step * MIB,  # less than a fiftieth
        lambda step: 8 * GIB - step * MIB,
        lambda step: 4 * GIB + (step * 2 * MIB if step < 400 else 800 * MIB),  # ends by itself
    ],
    ids=["level", "warm-up", "filling", "logarithm", "stairs", "sawtooth", "jump", "little", "slow", "falls", "ends"],
)
def test_memory_that_does_not_grow_all_the_time_is_no_finding(course: Course) -> None:
    assert found_in(course) == {}


def test_record_lengths_of_random_batches_are_no_finding() -> None:
    """The allocator keeps what the longest sequence so far needed."""
    for seed in range(20):
        draw, most = random.Random(seed), 0.0

        def course(_: int) -> float:
            nonlocal most
            most = max(most, draw.lognormvariate(0, 0.6))  # noqa: B023
            return GIB * most

        assert found_in(course, steps=600) == {}, seed


def test_a_short_run_is_no_finding() -> None:
    assert found_in(lambda step: 4 * GIB + step * 20 * MIB, steps=150) == {}


def test_rows_that_are_read_for_the_first_time_may_be_kept() -> None:
    def grown(passes: bool) -> dict[str, Finding]:
        made = script(kind="cpu")
        take = stepping(made, data_wait_ms=0.2)

        def add_step(number: int) -> None:
            if passes and number == 50:
                feed(made, [loaded(80, 8, 80)])
            take(number)

        return sampled_run(made, add_step, {0: {"anonymous_bytes": lambda step: GIB + step * MIB}})

    assert "memory-creep" not in grown(False)
    assert "memory-creep" in grown(True)


def test_of_several_devices_the_one_that_grows_fastest_is_named() -> None:
    made = script(2, strategy="ddp")
    courses = {
        device: {"memory_used_bytes": lambda step, device=device: GIB + step * (1 + device) * MIB}
        for device in range(2)
    }
    found = sampled_run(made, stepping(made, 2), courses)["memory-creep"]
    assert found.numbers["device"] == 1
    assert "device 1 (rank 1)" in found.message
    assert "that of 1 more" in found.message


# -- cpu-oversubscribed ----------------------------------------------------------------------------


def loader_run(
    threads: float, used: float, cores: float = 8.0, processes: int = 10, wait_ms: float = 2.0, kind: str = "cuda"
) -> dict[str, Finding]:
    made = script(2, kind, "ddp")
    courses = {rank: {"runnable_threads": lambda _: threads / 2, "cpu_cores": lambda _: used / 2} for rank in range(2)}
    for rank in range(2):
        feed(made, [ProgramBegan(-3.0)], rank)
    add_step = stepping(made, 2, data_wait_ms=wait_ms, cycle_ms=6.0, step_ms=4.0)
    return sampled_run(made, add_step, courses, steps=500, cores=cores, processes=processes, now=0.0)


def test_more_threads_than_cores_while_devices_wait_is_found() -> None:
    found = loader_run(threads=16, used=7.8)["cpu-oversubscribed"]
    words = "16 threads of 2 ranks and of the 8 processes that they have started compete for 8 cores"
    assert found.message.startswith(words)
    assert "num_workers" in found.suggestion


@pytest.mark.parametrize(
    "how",
    [
        {"threads": 11.9, "used": 7.8},  # fewer than 1.5 times the cores
        {"threads": 16, "used": 5.0},  # cores are free: something else is slow
        {"threads": 16, "used": 7.8, "wait_ms": 0.05},  # devices do not wait
        {"threads": 16, "used": 7.8, "processes": 2},  # there are no loader processes to take away
        {"threads": 2.9, "used": 0.99, "cores": 1.0, "kind": "cpu", "processes": 4},  # virtual devices share cores
    ],
)
def test_a_machine_that_is_used_well_is_no_finding(how: dict[str, float]) -> None:
    assert "cpu-oversubscribed" not in loader_run(**how)  # type: ignore[arg-type]


# -- the devices' memory ---------------------------------------------------------------------------


def data_parallel(peaks: tuple[int, ...], kind: str = "cuda") -> dict[str, Finding]:
    made = aggregator(make_spec("dp", len(peaks), 8 * len(peaks)), None, kind=kind)
    devices = range(len(peaks))
    for device in devices:
        made.add_record(0, DeviceInfo(device, "card", CARD))
    made.add_record(0, split(0, devices, [8] * len(peaks)))
    made.add_record(0, step(0, [0], [8] * len(peaks), memory_peak_bytes=peaks))
    return {one.code: one for one in made.make_report(False).findings if one.code in CODES}


def test_an_output_device_that_is_fuller_than_the_others_is_found() -> None:
    found = data_parallel((60 * GIB, 30 * GIB, 30 * GIB))["output-device-full"]
    assert (found.numbers["ratio"], found.numbers["share_of_card"]) == (2.0, 0.75)
    assert found.numbers["largest_batch_rows"] == int(24 * 0.95 * 80 / 60)
    assert "batches of about 30 rows fit" in found.message


@pytest.mark.parametrize(
    "peaks", [(60 * GIB, 50 * GIB, 50 * GIB), (40 * GIB, 10 * GIB, 10 * GIB), (30 * GIB, 60 * GIB, 60 * GIB)]
)
def test_an_output_device_with_room_is_no_finding(peaks: tuple[int, ...]) -> None:
    assert data_parallel(peaks) == {}


def test_a_rank_on_the_first_ranks_device_is_found() -> None:
    made = script(4, strategy="ddp")
    strays = [StrayContext(rank, 0, 5, 520 * MIB) for rank in (1, 2, 3)]
    found = sampled_run(made, stepping(made, 4), {0: {}}, steps=30, strays=strays)["stray-context-on-first-device"]
    assert found.message == "ranks 1, 2, 3 are also on device 0, which is that of rank 0, and hold 1,560 MiB there"
    assert "set_device" in found.suggestion


def test_a_rank_that_was_seen_there_only_for_a_moment_is_no_finding() -> None:
    made = script(2, strategy="ddp")
    strays = [StrayContext(1, 0, 2, 520 * MIB)]
    assert CODES.isdisjoint(sampled_run(made, stepping(made, 2), {0: {}}, steps=30, strays=strays))
