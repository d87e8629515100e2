"""What the wrappers report to: one watch for one process. It knows what is within what, and hands on what counts.

No torch here: the few functions of torch that it asks are handed in by `hooks` when torch is there.
"""

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from jobs.protocol.records import DeviceInfo, Group, Metric, Shape, Wrapped
from workers.probe.backward_timer import leaves_of, time_backward
from workers.probe.clock import Mark, Span
from workers.probe.dataloaders import Loaders
from workers.probe.fast_path import AWAY, NOBODY, Usual, learning_rate
from workers.probe.module_registry import Models, Root
from workers.probe.shapes import rows_of, shape_of, shape_of_arguments, tensors_in
from workers.probe.step_builder import Forward, Windows
from workers.probe.step_records import DDP_FIRST, DdpTimes, Reductions, Shard, sampled
from workers.runtime.context import RankContext, innermost

if TYPE_CHECKING:
    from torch import nn

#: Where a thread is: in no module; in one that has wrapped modules inside; where nothing more is looked for.
OUTSIDE, SEARCHING, INSIDE = range(3)
MAX_WRAPPED = 64
#: Between a method and the call of a part there may be a comprehension or a helper.
MAX_FRAMES = 3
#: How far above `Watch.begin` the caller of a module is: `Probe.begin` and the wrapper's functions are between them.
CALLER = 5

DDP_SAMPLED = (
    "read from DistributedDataParallel in its first ten reductions and every tenth; every hundredth of quick ones"
)
DDP_UNMEASURED = "this version of torch does not tell how long DistributedDataParallel's backward and all-reduce took"
TRANSFORMED = "inside torch.func transforms (vmap, grad) a module sees no batch, so its rows are not counted"
FOREIGN_DEVICE = "a module ran on {}, which is no device of this rank; its rows are counted at the rank's own"


class Where:
    """Where a thread is."""

    __slots__ = ("depth", "forward", "in_backward", "in_primitive", "optimizers", "root", "usual")

    def __init__(self) -> None:
        self.depth = OUTSIDE
        self.root: Root | None = None
        self.forward: Forward | None = None
        self.in_primitive = False
        self.in_backward = False
        self.optimizers: tuple[Any, ...] = ()
        self.usual: Usual = NOBODY


class Here(threading.local):
    """Where the current thread is. To look that up costs more than all that is asked of it."""

    def __init__(self) -> None:
        self.now = Where()


class Torch:
    """What a watch asks torch. Everything has an answer while torch is not there."""

    def __init__(self) -> None:
        self.grad_enabled: Callable[[], bool] = lambda: True
        self.elsewhere: Callable[[], bool] = lambda: False  # in the autograd engine, tracing, on fake tensors
        self.tensor: type[Any] | None = None
        self.transformed: Callable[[], bool] = lambda: False  # within torch.func
        self.ddp_times: Callable[[Any, int], DdpTimes | None] = lambda wrapper, iteration: None
        self.ddp_every: Callable[[Any, int], None] = lambda wrapper, every: None  # measure so many
        self.memory: Callable[[int], int] | None = None  # the most that was used of a device
        self.properties: Callable[[int], tuple[str, int]] | None = None  # name and memory of a device
        self.cuda_ready: Callable[[], bool] = lambda: False
        self.capturing: Callable[[], bool] = lambda: False  # a CUDA graph, in which no event may be asked for
        self.group: Callable[[], tuple[int, int, str] | None] = lambda: None  # rank, world size, backend


class Watch:
    """Sees one process; `first_split` makes ids of splits unique among the processes of a rank."""

    def __init__(
        self, context: RankContext, torch: Torch, here: Here, first_split: int = 0, *, rehearsed: bool = False
    ) -> None:
        self.context = context
        self.here = here
        self.models = Models()
        self.windows = Windows(context, self.models, first_split)
        self.loaders = Loaders(context.sink.emit, lambda: self.windows.steps)
        self.torch = torch
        self._devices = {device.logical: slot for slot, device in enumerate(context.devices)}
        self._waits_for_cuda = context.kind == "cuda"
        self._held: Forward | None = None  # made of primitives, or of parts in a method: nothing marks its end
        self._method: FrameType | None = None  # the method that the held forward is made in
        self._loose: dict[str, list[Span]] = {}  # primitives called by hand
        self._replicated: tuple[set[int], nn.Module] | None = None  # replicas by identity, and whose they are
        self._targets: tuple[tuple[int, ...], int] | None = None  # of the last scatter: slots, and dimension
        self._reductions: weakref.WeakKeyDictionary[Any, Reductions] = weakref.WeakKeyDictionary()  # by ddp wrapper
        self.windows.ddp_times = self._ddp_times
        self.usual = Usual(self.windows, self.loaders, torch, self.models, innermost(context.sink))
        self.usual.ddp_times = self._ddp_times
        self.windows.learned = self._learned
        self.loaders.later, self.loaders.steps_now = self.usual.later, lambda: self.usual.steps
        self._wrapped = 0
        self._latest = 0  # the slot of the last forward, whose backward comes next
        self._joined: tuple[int, int] | None = None
        # The slot of this process, where it has one for all it does, and the dimension of rows.
        placed = len(context.devices) > 1 and (context.kind == "cuda" or rehearsed)
        self._place = None if placed else ((0,), 0)

    # -- forwards --------------------------------------------------------------------------------

    def begin(self, module: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Forward | None:
        """The call of a module begins in this thread; None when it is not one that counts."""
        here = self.here.now
        if here.depth == SEARCHING:
            part = here.root.parts.get(id(module)) if here.root is not None else None
            return None if part is None else self._begin(part, part.model.training, args, kwargs)
        root = self.models.root(module)
        if not root.counts or self.torch.elsewhere() or self._is_capturing():
            return None
        self._leave(here)
        if here.usual is not self.usual and self.usual.owner is not None:
            self.usual.crowd()
        if not root.looked:
            root.looked = True
            root.around = None if root.kind else _module_around(module, sys._getframe(CALLER))
        around = None if root.around is None else root.around()
        frame = None if around is None else _method_of(around, sys._getframe(CALLER))
        if around is None or frame is None:
            return self._begin_root(root, args, kwargs)
        return self._begin_in_method(around, frame, args, kwargs)

    def _begin_root(self, root: Root, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Forward:
        if self._held is not None:
            self.settle()
        if self._waits_for_cuda:
            self._try_cuda()
        training = root.model.training
        self._forward_begins(training and self.torch.grad_enabled())
        return self._begin(root, training, args, kwargs)

    def _forward_begins(self, trains: bool) -> None:
        self.windows.forward_begins(trains)
        self._leave(self.here.now)  # what that has settled may have been a simple step

    def _begin_in_method(
        self, around: "nn.Module", frame: FrameType, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Forward:
        """A method of a module that was not called itself (`net.forward(x)`, `net.encode(x)`) calls one part after the
        other: together they are one forward of the module."""
        if self._held is not None and self._method is frame:
            return self._held
        forward = self._begin_root(self.models.root(around), args, kwargs)
        forward.in_method = True
        self._held, self._method = forward, frame
        return forward

    def _begin(self, root: Root, training: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Forward:
        wrapper = None if root.wrapper is None else root.wrapper()
        slots, dim = self._places(root, wrapper, args, kwargs) if root.kind or self._place is None else self._place
        given = self._given(args, kwargs)
        rows = self._rows(given, dim, args)
        learns = self.torch.grad_enabled()
        began = time.perf_counter()
        forward = Forward(root, began, self._mark(slots[0], began), slots, dim, given, rows, training, learns)
        if root.kind == "ddp" and learns and getattr(wrapper, "require_backward_grad_sync", False):
            forward.synchronous = self._reductions.setdefault(wrapper, Reductions(weakref.ref(wrapper)))
            forward.synchronous.count += 1
        return forward

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Shape | None:
        if self.torch.transformed():
            self.windows.note("patterns.rows", TRANSFORMED)
            return None
        return shape_of_arguments(args, kwargs)

    def _rows(self, given: Shape | None, dim: int, args: tuple[Any, ...]) -> int | None:
        if len(args) > 0 and type(args[0]).__name__ == "PackedSequence":  # its tensor has all sequences, end to end
            return int(args[0].batch_sizes[0])
        return rows_of(given, dim)

    def end(self, forward: Forward, outputs: Any) -> None:
        """The call is over."""
        if forward.seen_inside:
            return
        forward.ended = time.perf_counter()
        if not forward.scattered:
            slot = forward.slots[0]
            forward.span = Span(self.windows.clock, forward.mark, self._mark(slot, forward.ended))
            forward.returned = shape_of(outputs)
        within = self.here.now.forward
        if within is not None:
            within.seen_inside = True
        self._latest = forward.slots[0]
        if not forward.in_method:
            self.windows.forward_ends(forward)

    # -- usual steps -----------------------------------------------------------------------------

    def _leave(self, here: Where) -> None:
        """Something unusual happens in this thread."""
        if here.usual.stage != AWAY:
            here.usual.leave(here)
            if here.usual.inside:
                here.depth = INSIDE

    def end_of_left(self, outputs: Any) -> None:
        """A forward that began as usual is over; something unusual happened within it."""
        forward, self.usual.forward = self.usual.forward, None
        if forward is not None:
            self.end(forward, outputs)

    def batch_came(self, iterator: Any, batch: Any, asked: float, arrived: float) -> None:
        self._leave(self.here.now)
        if self._held is not None:
            self.settle()
        self.windows.batch_came(asked, arrived, self.loaders.came(iterator, batch, arrived))

    def _learned(self, forward: Forward, phase: str, split: int) -> None:
        here, root = self.here.now, forward.root
        if self._held is not None or here.optimizers or here.depth != OUTSIDE:
            return
        if self._place is None or self._waits_for_cuda or root.parts or root.around is not None or forward.in_method:
            return
        if phase == "train" and not (forward.training and forward.learns):
            return
        if phase == "eval" and forward.learns and self.models.has_optimizers:  # a backward may follow the next one
            return
        known = self.windows.known(forward, phase, split)
        if known is not None:
            root.known[forward.learns][known.given] = known
        self.usual.ready(here)

    def mark(self, slot: int) -> Mark:
        return self._mark(slot, time.perf_counter())

    def _mark(self, slot: int, now: float) -> Mark:
        if self.windows.on_host:
            return now
        return self.windows.clock.mark(self.context.devices[slot].logical)

    def _try_cuda(self) -> None:
        """Once the program uses its devices, so may we. Called only between two measurements: a time has one clock."""
        if not self.torch.cuda_ready():
            return
        self._waits_for_cuda = False
        self.windows.use_clock("cuda")
        self.windows.memory = self.torch.memory
        for device in self.context.devices:
            if self.torch.properties is not None:
                self.windows.emit(DeviceInfo(device.logical, *self.torch.properties(device.logical)))

    # -- devices ---------------------------------------------------------------------------------

    def _places(
        self, root: Root, wrapper: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[int, ...], int]:
        """The slots on which a root runs, and the dimension of its rows."""
        if root.kind == "dp" and getattr(wrapper, "device_ids", None):
            slots = self._slots(wrapper.device_ids)
            return slots if len(set(slots)) == len(slots) else slots[:1], getattr(wrapper, "dim", 0)
        if self._place is not None:
            return self._place
        return self._slots([_cuda_index(root, args, kwargs)]), 0

    def _slots(self, indices: Sequence[Any]) -> tuple[int, ...]:
        return tuple([self._slot(index) for index in indices])

    def _slot(self, device: Any) -> int:
        index = getattr(device, "index", device)
        slot = self._devices.get(index) if isinstance(index, int) else 0
        if slot is None:
            self.windows.note("devices", FOREIGN_DEVICE.format(device))
        return slot or 0

    # -- DataParallel's primitives ----------------------------------------------------------------

    def primitive_ended(self, name: str, begin: Mark) -> None:
        span = Span(self.windows.clock, begin, self.mark(0))
        forward = self.here.now.forward or (self._held if name in ("parallel_apply", "gather") else None)
        spans = self._loose if forward is None else forward.primitives
        spans.setdefault(name, []).append(span)
        if forward is not None and forward is self._held and name == "gather":
            self.settle()

    def primitive_begins(self) -> Mark:
        self._leave(self.here.now)
        return self.mark(0)

    def replicated(self, module: "nn.Module", replicas: Sequence[Any]) -> None:
        """Remember whose replicas these are, for a program that applies them by hand."""
        if self.here.now.forward is None:
            self._replicated = {id(replica) for replica in replicas}, module

    def scattered(self, devices: Sequence[Any], dim: int) -> None:
        """Remember over which devices a batch was divided: those that got nothing take part in the split, too."""
        self._targets = self._slots(devices), dim

    def applying(self, modules: Sequence[Any], devices: Sequence[Any] | None) -> Forward | None:
        """Replicas are about to be called, each on its shard. None when they are no part of a forward that counts."""
        self._leave(self.here.now)
        forward = self.here.now.forward
        targets, self._targets = self._targets, None
        if targets is None or len(targets[0]) < len(modules):
            targets = self._slots(devices if devices is not None else range(len(modules))), 0
        if len(set(targets[0])) < len(targets[0]):  # over devices that are not this rank's: seen as a whole
            return None
        if forward is None:
            forward = self._by_hand(modules, *targets)
        elif forward.root.kind != "dp":
            forward.slots, forward.dim = targets
        if forward is not None:
            forward.scattered = True
            forward.graph_ms = forward.graph_ms or [None] * len(self.context.devices)
        return forward

    def _by_hand(self, modules: Sequence[Any], slots: tuple[int, ...], dim: int) -> Forward | None:
        """A forward of which only the primitives are seen, as in PyTorch's tutorial on data parallelism."""
        if self._replicated is None or not modules or id(modules[0]) not in self._replicated[0]:
            return None
        network = self._replicated[1]
        root, learns = self.models.root(network), self.torch.grad_enabled()
        self.settle()
        if self._waits_for_cuda:
            self._try_cuda()
        self._forward_begins(network.training and learns)
        now = time.perf_counter()
        forward = Forward(root, now, self._mark(slots[0], now), slots, dim, None, None, network.training, learns)
        forward.primitives, self._loose = self._loose, {}
        self._held = forward
        return forward

    def shard_ended(self, forward: Forward, slot: int, given: Shape | None, outputs: Any, begin: Mark) -> None:
        span = Span(self.windows.clock, begin, self.mark(slot))
        seen = forward.shards.get(slot)
        if seen is None:
            forward.shards[slot] = Shard(given, shape_of(outputs), [span])
        else:
            seen.returned = shape_of(outputs)
            seen.spans.append(span)

    def applied(
        self, forward: Forward, replicas: Sequence[Any], inputs: Sequence[Any], kwargs: Any, outputs: Any
    ) -> None:
        """All shards have run."""
        if forward is self._held:
            rows = [rows_of(shard.given, forward.dim) for shard in forward.shards.values()]
            forward.rows = None if None in rows else sum(filter(None, rows))
            forward.ended = time.perf_counter()
        if not forward.learns or self.context.kind != "cpu" or not sampled(self.windows.steps):
            return
        for position, replica in enumerate(replicas):
            named = kwargs[position] if kwargs is not None else {}
            boundary = [*leaves_of(replica), *tensors_in((inputs[position], named))]
            time_backward(outputs[position], boundary, forward.graph_ms, forward.slots[position])

    # -- backward, optimizers, loaders -------------------------------------------------------------

    def settle(self) -> None:
        """What was made of primitives, or of parts in a method, ends here at the latest."""
        held, self._held, self._method = self._held, None, None
        if held is not None:
            self.windows.forward_ends(held)

    def _is_capturing(self) -> bool:
        return not self.windows.on_host and self.torch.capturing()

    def backward_begins(self) -> Mark | None:
        if self._is_capturing():
            return None
        self._leave(self.here.now)
        if self._held is not None:
            self.settle()
        self.windows.backward_begins()
        return self.mark(self._latest)

    def backward_ended(self, begin: Mark) -> None:
        now = time.perf_counter()
        self.windows.backward_ended(Span(self.windows.clock, begin, self._mark(self._latest, now)), now)

    def optimizer_begins(self, optimizer: Any) -> None:
        here = self.here.now
        self._leave(here)
        self.models.optimizer_made(optimizer)
        if self._is_capturing():
            return
        if optimizer in here.optimizers:  # its last step raised, or a subclass calls the step of its base
            here.optimizers = here.optimizers[: here.optimizers.index(optimizer)]
        here.optimizers = (*here.optimizers, optimizer)

    def optimizer_ended(self, optimizer: Any) -> None:
        here = self.here.now
        self._leave(here)
        if not here.optimizers:
            return
        here.optimizers = here.optimizers[:-1]
        if not here.optimizers:
            if self._held is not None:
                self.settle()
            self._tell_learning_rate(optimizer)
            self.usual.steps += 1
            self.windows.step_ended(time.perf_counter())

    def _tell_learning_rate(self, optimizer: Any) -> None:
        step = self.windows.steps
        if sampled(step) and self.windows.rank == 0:
            rate = learning_rate(optimizer)
            if rate is not None:
                self.windows.emit(Metric(-1, "learning_rate", step, rate, time.time()))

    def _ddp_times(self, reductions: Reductions) -> DdpTimes | None:
        """What a wrapper says of the step that has just ended. To ask may wait for the device, so it is done seldom."""
        iteration = reductions.count
        if iteration >= DDP_FIRST:
            self.windows.note("per_device.backward_ms", DDP_SAMPLED)
        if not reductions.is_measured:
            return None
        wrapper = reductions.wrapper()
        times = self.torch.ddp_times(wrapper, iteration)
        if reductions.pace(time.perf_counter()):
            self.torch.ddp_every(wrapper, reductions.every)
        if times is None:
            self.windows.note("per_device.backward_ms", DDP_UNMEASURED)
            self.windows.note("per_device.comm_ms", DDP_UNMEASURED)
        return times

    # -- groups and wrappers -----------------------------------------------------------------------

    def see_group(self) -> None:
        """Tell of the process group that this process is in, once it is in one."""
        group = self.torch.group()
        if group is not None and group[:2] != self._joined:
            self._joined = group[:2]
            self._forget_the_usual()
            self.windows.rank, self.windows.world_size = group[:2]
            if self._place is not None:
                self._place = (group[0] % len(self.context.devices),), 0
            self.windows.emit(Group(*group))

    def skipped(self) -> None:
        """A GradScaler has not let the optimizer take its step."""
        self._leave(self.here.now)
        self.usual.steps += 1
        self.windows.skipped()

    def _forget_the_usual(self) -> None:
        self._leave(self.here.now)
        self.models.changed()

    def wrapped(self, kind: str, module: "nn.Module", devices: Sequence[Any]) -> None:
        self._forget_the_usual()
        self._wrapped += 1
        if self._wrapped <= MAX_WRAPPED:
            logical = [self.context.devices[slot].logical for slot in self._slots(devices)]
            self.windows.emit(Wrapped(kind, type(module).__name__, tuple(dict.fromkeys(logical))))

    def finish(self) -> None:
        self.usual.tell()
        self._leave(self.here.now)
        self.settle()
        self.see_group()
        self.windows.finish()
        self.loaders.finish()


def _module_around(module: "nn.Module", frame: FrameType | None) -> "weakref.ref[nn.Module] | None":
    """The module one of whose methods is calling its part `module`, while nobody has called it itself."""
    for caller in _callers(frame):
        first = _self(caller)
        parts = getattr(first, "modules", None) if hasattr(first, "_modules") else None
        if parts is not None and first is not module and any(part is module for part in parts()):
            found: weakref.ref[Any] = weakref.ref(first)
            return found
    return None


def _method_of(module: "nn.Module", frame: FrameType | None) -> FrameType | None:
    return next((caller for caller in _callers(frame) if _self(caller) is module), None)


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _self(frame: FrameType) -> Any:
    """Whose method this is, by the name that everybody gives it; a function may have a model as its first argument."""
    code = frame.f_code
    return frame.f_locals.get("self") if code.co_argcount and code.co_varnames[0] == "self" else None


def _cuda_index(root: Root, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The device of the first input, or of the model where that is on the CPU."""
    first = next(tensors_in((args, kwargs)), None)
    index = -1 if first is None else first.get_device()
    if index < 0:
        module = root.model.ref()
        parameter = None if module is None else next(module.parameters(), None)
        index = -1 if parameter is None else parameter.get_device()
    return max(index, 0)
