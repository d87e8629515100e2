"""Made-up runs with the noise of real ones, in which a device may be slow from some step on."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import PrimitiveTimes, ProgramBegan, Step
from tests.support.samples.record_streams import aggregator, split, step
from tests.support.samples.specs import make_spec
from workers.probe.step_records import is_sampled
from workers.supervisor.report.leased_devices import LeasedDevice
from workers.supervisor.report.recipe_aggregator import RecipeAggregator

ROWS = 8


@dataclass(frozen=True)
class Plant:
    """By how much of a step's time one device is slower, or several are."""

    device: int
    part: str  # wait | forward | backward
    share: float
    since: int = 0
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class Machine:
    """What a step takes on each device, in milliseconds, and how much that varies."""

    wait: float = 0.4
    forward: float = 6.0
    backward: float = 11.0
    comm: float = 1.5
    optimizer: float = 1.5
    spread: float = 0.08  # of every time, step by step
    drift: float = 0.02  # of the machine's speed, which comes and goes, for each device
    hiccups: float = 0.004  # how many steps are disturbed, each by up to 80 ms

    @property
    def step_ms(self) -> float:
        return self.wait + self.forward + self.backward + self.comm + self.optimizer


class _Device:
    """The times of one device, step by step."""

    def __init__(self, machine: Machine, chance: random.Random) -> None:
        self._machine, self._chance = machine, chance
        self._drift = chance.gauss(0, machine.drift)

    def draw(self, extra: dict[str, float], warm_up: float) -> dict[str, float]:
        machine, chance = self._machine, self._chance
        self._drift = 0.99 * self._drift + chance.gauss(0, 0.14 * machine.drift)
        times = {}
        for part in ("wait", "forward", "backward"):
            took = getattr(machine, part) * chance.lognormvariate(0, machine.spread) * (1 + self._drift) * warm_up
            hiccup = chance.uniform(0, 80) if chance.random() < machine.hiccups else 0.0
            times[part] = took + hiccup + extra.get(part, 0.0)
        return times


def _draw_steps(
    machine: Machine, devices: int, steps: int, seed: int, plant: Plant | None
) -> Iterator[tuple[int, list[dict[str, float]]]]:
    chance = random.Random(seed)
    drawn = [_Device(machine, chance) for _ in range(devices)]
    for number in range(steps):
        slow = plant if plant is not None and number >= plant.since else None
        warm_up = 1 + 4 * chance.random() if number < 3 else 1.0
        yield (
            number,
            [
                one.draw(
                    {slow.part: slow.share * machine.step_ms}
                    if slow is not None and index in (slow.device, *slow.others)
                    else {},
                    warm_up,
                )
                for index, one in enumerate(drawn)
            ],
        )


def ddp_run(
    ranks: int,
    steps: int,
    seed: int,
    plant: Plant | None = None,
    machine: Machine = Machine(),
    kind: str = "cpu",
    leased: Sequence[LeasedDevice] | None = None,
    backward_every: int = 10,
) -> RecipeAggregator:
    """Ranks that wait for each other at the end of each backward."""
    told = aggregator(make_spec("ddp", ranks, ROWS), None, kind=kind, leased=leased)
    now = 0.0
    sent: list[list[AnyRecord]] = [[ProgramBegan(0.0), split(0, [rank], [ROWS])] for rank in range(ranks)]
    for number, times in _draw_steps(machine, ranks, steps, seed, plant):
        busy = [sum(one.values()) for one in times]
        end = max(busy) + machine.comm
        now += end + machine.optimizer
        for rank, one in enumerate(times):
            comm = end - busy[rank]
            sampled = is_sampled(number) and (number < 10 or number % backward_every == 0)
            sent[rank].append(
                _timed(
                    number,
                    [ROWS],
                    now,
                    data_wait_ms=one["wait"],
                    forward_ms=(one["forward"],),
                    backward_ms=(one["backward"] if sampled else None,),
                    comm_ms=comm if sampled else None,
                    whole_backward_ms=one["backward"] + comm,
                    optimizer_ms=machine.optimizer,
                    step_ms=end - one["wait"],
                    cycle_ms=end + machine.optimizer,
                )
            )
    for rank, records in enumerate(sent):
        for record in records:
            told.add_record(rank, record)
    return told


def node_run(nodes: int, devices: int, steps: int, slow_node: int | None = None, **options: Any) -> RecipeAggregator:
    """Ranks on so many devices of each of several nodes, host-0 to host-n, of which one may be slow in its forward."""
    leased = [
        LeasedDevice(index, f"cpu:{index % devices}", f"host-{index // devices}", "cpu", "a device")
        for index in range(nodes * devices)
    ]
    own = () if slow_node is None else range(slow_node * devices, (slow_node + 1) * devices)
    plant = Plant(own[0], "forward", 0.5, others=tuple(own[1:])) if own else None
    return ddp_run(len(leased), steps, 5, plant, leased=leased, **options)


def dp_run(
    devices: int, steps: int, seed: int, plant: Plant | None = None, machine: Machine = Machine()
) -> RecipeAggregator:
    """Virtual devices of one process, which work in turn."""
    told = aggregator(make_spec("dp", devices, ROWS * devices), None)
    told.add_record(0, ProgramBegan(0.0))
    told.add_record(0, split(0, range(devices), [ROWS] * devices))
    now = 0.0
    for number, times in _draw_steps(machine, devices, steps, seed, plant):
        compute = sum(one["forward"] + one["backward"] for one in times)
        wait = machine.wait
        arrivals = tuple(max(0.0, one["wait"] - wait) for one in times)
        cycle = wait + compute + sum(arrivals) + machine.comm + machine.optimizer
        now += cycle
        told.add_record(
            0,
            _timed(
                number,
                [ROWS] * devices,
                now,
                data_wait_ms=wait,
                arrival_ms=arrivals,
                forward_ms=tuple(one["forward"] for one in times),
                backward_ms=tuple(one["backward"] if is_sampled(number) else None for one in times),
                whole_backward_ms=sum(one["backward"] for one in times),
                optimizer_ms=machine.optimizer,
                primitives=PrimitiveTimes(machine.comm / 2, sum(arrivals), compute, machine.comm / 2),
                step_ms=cycle - wait,
                cycle_ms=cycle,
            ),
        )
    return told


def _timed(number: int, rows: list[int], now_ms: float, **times: Any) -> Step:
    made = step(number, [0], rows, **times)
    return Step(**{name: getattr(made, name) for name in Step.__struct_fields__} | {"at": now_ms / 1000})
