"""What is measured of devices: their times, their memory, and what DistributedDataParallel says. No torch here."""

import time
import weakref
from collections.abc import Sequence
from typing import Any

from jobs.protocol.records import DeviceInfo
from workers.probe.clock import CLOCKS, Mark, Span
from workers.probe.gradients.unused_search import UnusedSearch
from workers.probe.shapes import tensors_in
from workers.probe.step_records import DDP_FIRST, DdpReductions, DdpTimes, RunReporter
from workers.probe.types import RootModule, TorchQueries
from workers.runtime.context import RankContext

FOREIGN_DEVICE = "a module ran on {}, which is not a device of this rank; its rows are counted at the rank's own"
DDP_SAMPLED = (
    "read from DistributedDataParallel in its first ten reductions and every tenth; every hundredth of quick ones"
)
DDP_UNMEASURED = "this version of torch does not report how long DistributedDataParallel's backward and all-reduce took"

#: Slots of devices, and the dimension of rows.
Placement = tuple[tuple[int, ...], int]


class ProcessDevices:
    """The devices of this process by their slots (positions among them), and their clock. A process of a CUDA job is
    measured by the host's clock until the program uses its devices: nothing may initialise CUDA before."""

    def __init__(
        self, context: RankContext, torch: TorchQueries, reporter: RunReporter, *, rehearsed: bool = False
    ) -> None:
        self.kind = context.device_kind
        self.logical = tuple(device.logical for device in context.devices)
        self._positions = tuple(device.position for device in context.devices)  # as CUDA knows them
        self.clock, self.on_host = CLOCKS["cpu"], True
        self.waits_for_cuda = context.device_kind == "cuda"
        #: Where everything in this process runs; None where that is to be found out for each forward.
        several = len(self.logical) > 1 and (context.device_kind == "cuda" or rehearsed)
        self.placement: Placement | None = None if several else ((0,), 0)
        self._slots = {position: slot for slot, position in enumerate(self._positions)}
        self._torch = torch
        self._reporter = reporter

    # -- time and memory -------------------------------------------------------------------------

    def mark(self, slot: int, now: float) -> Mark:
        """A point in time on a device; on the host that is `now`."""
        return now if self.on_host else self.clock.mark(self._positions[slot])

    def mark_now(self, slot: int) -> Mark:
        return self.mark(slot, time.perf_counter())

    def span_until_now(self, begin: Mark, slot: int) -> Span:
        return Span(self.clock, begin, self.mark_now(slot))

    def use_cuda_if_ready(self) -> None:
        """Change to the devices' own clock once the program uses them. To be called only between two measurements: a
        span has one clock."""
        if not self.waits_for_cuda or not self._torch.is_cuda_ready():
            return
        self.waits_for_cuda = False
        self.clock, self.on_host = CLOCKS["cuda"], False
        if self._torch.device_properties is not None:
            for logical, position in zip(self.logical, self._positions, strict=True):
                self._reporter.emit(DeviceInfo(logical, *self._torch.device_properties(position)))

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is captured, in which no event may be recorded."""
        return not self.on_host and self._torch.is_capturing()

    def peak_memory(self, slots: Sequence[int]) -> tuple[int | None, ...]:
        """The most that was used of each device, in bytes; empty where devices have no memory of their own."""
        read = self._torch.peak_memory
        if self.kind != "cuda" or self.waits_for_cuda or read is None:
            return ()
        return tuple([read(self._positions[slot]) for slot in slots])

    # -- slots -----------------------------------------------------------------------------------

    def join_group(self, rank: int) -> None:
        """The process is one of a group: each rank runs on one device."""
        if self.placement is not None:
            self.placement = (rank % len(self.logical),), 0

    def place_forward(self, root: RootModule, wrapper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Placement:
        """The slots on which a root runs, and the dimension of its rows."""
        if root.kind == "dp" and getattr(wrapper, "device_ids", None):
            slots = self.slots_of(wrapper.device_ids)
            return slots if len(set(slots)) == len(slots) else slots[:1], getattr(wrapper, "dim", 0)
        if self.placement is not None:
            return self.placement
        return self.slots_of([_cuda_index(root, args, kwargs)]), 0

    def slots_of(self, devices: Sequence[Any]) -> tuple[int, ...]:
        return tuple([self._slot_of(device) for device in devices])

    def _slot_of(self, device: Any) -> int:
        index = getattr(device, "index", device)
        slot = self._slots.get(index) if isinstance(index, int) else 0
        if slot is None:
            self._reporter.note("devices", FOREIGN_DEVICE.format(device))
        return slot or 0


def _cuda_index(root: RootModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The device of the first input, or of the model where that input is on the CPU."""
    first = next(tensors_in((args, kwargs)), None)
    index = -1 if first is None else first.get_device()
    if index < 0:
        module = root.model.ref()
        parameter = None if module is None else next(module.parameters(), None)
        index = -1 if parameter is None else parameter.get_device()
    return max(index, 0)


def sum_gradient_bytes(module: Any) -> int:
    """The bytes of all gradients of a module, which DistributedDataParallel reduces."""
    return sum(one.numel() * one.element_size() for one in module.parameters() if one.requires_grad)


class DdpTimer:
    """Reads the times that DistributedDataParallel measures of its own backward and all-reduce."""

    def __init__(self, torch: TorchQueries, reporter: RunReporter) -> None:
        self._torch = torch
        self._reporter = reporter
        self._reductions: weakref.WeakKeyDictionary[Any, DdpReductions] = weakref.WeakKeyDictionary()  # by wrapper
        self._searches: weakref.WeakKeyDictionary[Any, UnusedSearch] = weakref.WeakKeyDictionary()
        self._searched = 0  # wrappers

    def begin_reduction(self, wrapper: Any) -> DdpReductions:
        """A forward begins whose gradients will be reduced."""
        reductions = self._reductions.setdefault(wrapper, DdpReductions(weakref.ref(wrapper)))
        reductions.count += 1
        return reductions

    def read_times(self, reductions: DdpReductions) -> DdpTimes | None:
        """The times of the step that has just ended. Reading may wait for the device, so only some steps are read."""
        iteration = reductions.count
        if iteration >= DDP_FIRST:
            self._reporter.note("per_device.backward_ms", DDP_SAMPLED)
        if not reductions.is_measured:
            return None
        wrapper = reductions.wrapper()
        times = self._torch.ddp_times(wrapper, iteration)
        self._look_at_search(wrapper, iteration)
        if reductions.adjust_sampling(time.perf_counter()):
            self._torch.set_ddp_sampling(wrapper, reductions.every)
        if times is None:
            self._reporter.note("per_device.backward_ms", DDP_UNMEASURED)
            self._reporter.note("per_device.comm_ms", DDP_UNMEASURED)
        return times

    def _look_at_search(self, wrapper: Any, iteration: int) -> None:
        uses_all = None if wrapper is None else self._torch.uses_all_parameters(wrapper)
        if uses_all is None:
            return
        search = self._searches.get(wrapper)
        if search is None:
            search = self._searches[wrapper] = UnusedSearch(self._searched, type(wrapper.module).__name__)
            self._searched += 1
        record = search.look_at(wrapper, uses_all, iteration)
        if record is not None:
            self._reporter.emit(record)
