"""Clocks of devices, which never make the host wait. torch is imported by the clock that needs it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import torch

#: A point in time on one device. For cuda it is known only once the device got there.
Mark = Any


@dataclass(frozen=True, slots=True)
class DeviceClock:
    """`mark(device index)` notes a point in time; `ms` gives the time between two marks of one device,
    and may only be asked once the later one is `reached`; `wait` blocks until it is."""

    mark: Callable[[int], Mark]
    ms: Callable[[Mark, Mark], float]
    reached: Callable[[Mark], bool]
    wait: Callable[[Mark], None]


def _record_cuda_event(index: int) -> "torch.cuda.Event":
    import torch

    with torch.cuda.device(index):
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
    return event


CLOCKS: dict[str, DeviceClock] = {
    "cpu": DeviceClock(
        mark=lambda index: time.perf_counter(),
        ms=lambda begin, end: (end - begin) * 1000.0,
        reached=lambda mark: True,
        wait=lambda mark: None,
    ),
    "cuda": DeviceClock(
        mark=_record_cuda_event,
        ms=lambda begin, end: float(begin.elapsed_time(end)),
        reached=lambda event: bool(event.query()),
        wait=lambda event: event.synchronize(),
    ),
}


class Span(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The time between two marks of one device, read when it is known."""

    clock: DeviceClock
    begin: Mark
    end: Mark

    def is_reached(self) -> bool:
        return self.clock.reached(self.end)

    def elapsed_ms(self) -> float:
        return self.clock.ms(self.begin, self.end)
