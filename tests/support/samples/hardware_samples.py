"""Made-up samples of an attempt's hardware, and runs that are sampled."""

from collections.abc import Callable, Mapping, Sequence

from jobs.protocol.hardware import AttemptSamples, DeviceSamples, StrayContext
from shardyard.contract.report import Finding
from workers.supervisor.report.aggregator import Aggregator

MIB = 2**20
#: The value of a series at a step.
Course = Callable[[int], float]


def sampled_run(
    told: Aggregator,
    add_step: Callable[[int], None],
    courses: Mapping[int, Mapping[str, Course]],
    *,
    steps: int = 600,
    every: int = 10,
    cores: float = 8.0,
    processes: int = 1,
    strays: Sequence[StrayContext] = (),
    now: float | None = None,
) -> dict[str, Finding]:
    """Take steps, with a sample after each tenth; `courses` are by device. Returns the findings, by code."""
    samples = AttemptSamples(0.0, 0.0, cores, [DeviceSamples(device) for device in courses])
    samples.processes, samples.strays = processes, list(strays)
    for number in range(steps):
        add_step(number)
        if number % every:
            continue
        for device in samples.devices:
            device.samples += 1
            for name, course in courses[device.device].items():
                device.add_value(name, number // every, course(number), 1.0)
        samples.at = float(number // every)
        told.add_samples(samples, samples.at)
    return {one.code: one for one in told.make_report(False, now=now).findings}
