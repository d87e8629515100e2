"""Values that the probe's parts hand to each other: modules, forwards, steps, and where a thread is. No torch here.

This module imports no other part that watches a program, so that each of them may import it.
"""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from jobs.protocol.records import Shape
from workers.probe.clock import Mark, Span
from workers.probe.dataloaders import LoaderPass
from workers.probe.step_records import DdpReductions, DdpTimes, Shard

if TYPE_CHECKING:
    from torch import nn

#: Where a thread is: in no module; in one that contains wrapped modules; where no further module is looked for.
OUTSIDE, SEARCHING, INSIDE = range(3)

#: What the fast path noted last. READY: a step may begin. A forward begins in READY or LOADED. OFF: nothing is noted.
READY, LOADED, CALLED, RETURNED, IN_BACKWARD, BACKWARD_DONE, STEPPING, OFF = range(8)


# -- modules ---------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class WatchedModel:
    """One model, however it is wrapped. `name` is given when the first record about it is sent."""

    ref: "weakref.ref[nn.Module]"
    class_name: str
    has_parameters: bool
    name: str | None = None
    is_counted: bool = False  # a forward of it has been counted
    is_examined: bool = False  # its layers have been looked at
    reached: tuple[int, bool] = (-1, False)  # whether an optimizer has parameters of it, as of a generation

    @property
    def training(self) -> bool:
        """The flag of the inner module: wrappers of some frameworks do not keep their own up to date."""
        module = self.ref()
        return module is None or module.training


@dataclass(slots=True, eq=False)
class RootModule:
    """A module that is called from outside of all others. `parts` are wrapped modules inside a root that is not wrapped
    itself, by identity."""

    ref: "weakref.ref[nn.Module]"
    model: WatchedModel
    kind: str  # "" | dp | ddp | fsdp
    counts: bool  # it has parameters, or divides work: its calls are forwards
    wrapper: "weakref.ref[nn.Module] | None" = None
    path: str = ""  # of a part, within the root's model
    parts: "dict[int, RootModule]" = field(default_factory=dict)
    owner_searched: bool = False  # for a method that calls it, below
    owner: "weakref.ref[nn.Module] | None" = None  # a module that contains it, and whose methods call it
    holds_tokens: bool | None = None  # its inputs are token ids; None before its first call
    #: Templates by the shape of the first input, without gradients and with them.
    templates: "tuple[dict[Shape | None, StepTemplate], dict[Shape | None, StepTemplate]]" = field(
        default_factory=lambda: ({}, {})
    )


# -- forwards --------------------------------------------------------------------------------------


class LoadedBatches(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What the loaders delivered between two forwards. Moments are those of `time.perf_counter`."""

    arrived: float | None = None  # when the first batch was there
    waited: float | None = None  # seconds in all
    waited_later: float = 0.0  # of these, after the first batch
    rows: int = 0


NO_BATCHES = LoadedBatches()


class ForwardCall(msgspec.Struct, frozen=True, eq=False, gc=False):
    """How a model, or a wrapped part of one, is called: which, where, with what.

    `slots` are the positions, among the devices of this process, of those that take part; `dim` is the
    dimension of the rows. `reductions` belong to the DistributedDataParallel that will reduce its gradients.
    """

    root: RootModule
    slots: tuple[int, ...]
    dim: int
    input_shape: Shape | None
    rows: int | None
    training: bool
    with_grad: bool
    reductions: DdpReductions | None = None


class ShardedCall(msgspec.Struct, eq=False):
    """What DataParallel's primitives did within one forward."""

    is_scattered: bool = False  # the batch was divided among devices
    shards: dict[int, Shard] = {}  # by slot
    primitives: dict[str, list[Span]] = {}
    backward_ms: list[float | None] = []  # of the graph of each shard, by slot


class Forward(msgspec.Struct, eq=False):
    """One call of a model from outside, or of a wrapped part of one, with its times."""

    call: ForwardCall
    began: float
    begin_mark: Mark
    ended: float = 0.0
    output_shape: Shape | None = None
    span: Span | None = None
    backwards_before: int = 0  # of the same window
    loaded: LoadedBatches = NO_BATCHES
    sharded: ShardedCall = msgspec.field(default_factory=ShardedCall)
    is_seen_inside: bool = False  # a wrapped part of it was a forward of its own
    in_method: bool = False  # made of calls of its parts, since it was not called itself
    graph: "weakref.ref[Any] | None" = None  # dead once its graph is gone; None where that is not followed

    @property
    def is_abandoned(self) -> bool:
        """Its graph is gone, so that no backward can follow it any more."""
        return self.graph is not None and self.graph() is None

    @property
    def is_simple(self) -> bool:
        """It has one device, which computed it in one go."""
        return not self.sharded.is_scattered and len(self.call.slots) == 1 and not self.sharded.primitives

    def shard(self, slot: int) -> Shard | None:
        """What a device got; None where it got nothing."""
        if self.sharded.is_scattered:
            return self.sharded.shards.get(slot)
        return Shard(self.call.input_shape, self.output_shape, []) if slot == self.call.slots[0] else None

    def change_call(self, **changes: Any) -> None:
        """A call is shared with the template it was made from, so it is replaced and never written to."""
        self.call = msgspec.structs.replace(self.call, **changes)


class Backward(msgspec.Struct, frozen=True, eq=False):
    """One outermost backward."""

    span: Span
    ended: float
    is_local: bool  # no gradients were reduced meanwhile


class OptimizerBegin(NamedTuple):
    """The step of an optimizer has begun."""

    began: float
    mark: Mark


# -- steps that repeat -----------------------------------------------------------------------------


class StepTemplate(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A step of one simple forward that was seen before. It is found by its root, its mode, and the shape of its first
    input; all but its times is known."""

    call: ForwardCall
    is_unwrapped: bool  # the root is its model
    output_shape: Shape | None
    rows: int
    phase: str
    trains: bool  # that phase is "train"
    splits: tuple[int, ...]
    without_loader: bool  # its rows were trusted while no DataLoader was there to compare with


class StepSample(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The times of a step that follows a template. Moments are those of `time.perf_counter`.

    Hundreds of them wait on the tape: no field may be of a type that the garbage collector tracks, or each of its
    collections would go through them."""

    template: StepTemplate
    output_shape: Shape | None
    loader_pass: LoaderPass | None
    asked: float
    arrived: float
    began: float
    ended: float
    backward_began: float
    backward_ended: float
    stepping: float  # the step of the optimizer began
    stepped: float
    learning_rate: float | None = None  # in some steps
    ddp_times: DdpTimes | None = None  # in some steps


@dataclass(slots=True, eq=False)
class CurrentStep:
    """What the fast path has noted of the current step. The wrappers write to it without a call: between two
    operations of torch, a call of a function costs as much as what it does."""

    stage: int = OFF
    thread: int = 0  # whose steps are noted; 0 where those of no thread are
    inside: int = 0  # the same, while that thread is inside the forward
    template: Any = None  # a StepTemplate from CALLED on
    output_shape: Shape | None = None
    loader_pass: LoaderPass | None = None
    optimizer: Any = None
    asked: float = 0.0
    arrived: float = 0.0
    began: float = 0.0
    ended: float = 0.0
    backward_began: float = 0.0
    backward_ended: float = 0.0
    stepping: float = 0.0


# -- threads ---------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class ThreadState:
    """Where a thread is."""

    depth: int = OUTSIDE
    root: RootModule | None = None
    forward: Forward | None = None
    in_primitive: bool = False
    in_backward: bool = False
    optimizers: tuple[Any, ...] = ()
    stepping: OptimizerBegin | None = None  # of the outermost of `optimizers`
    fast_path: Any = None  # a FastPath where the steps of this thread are noted

    def leave_fast_path(self) -> None:
        """To be called when the program does something that no template foresees."""
        fast_path = self.fast_path
        if fast_path is not None and fast_path.step.stage != OFF:
            fast_path.leave(self)
            if fast_path.step.inside:
                self.depth = INSIDE


class ThreadStates(threading.local):
    """The state of the current thread. Looking up a thread-local attribute costs more than anything asked of it."""

    def __init__(self) -> None:
        self.current = ThreadState()


# -- torch -----------------------------------------------------------------------------------------


class TorchQueries:
    """What the probe asks torch. Each query has an answer while torch is not imported."""

    def __init__(self) -> None:
        self.grad_enabled: Callable[[], bool] = lambda: True
        self.is_hidden: Callable[[], bool] = lambda: False  # in the autograd engine, tracing, on fake tensors
        self.is_transformed: Callable[[], bool] = lambda: False  # within torch.func
        self.ddp_times: Callable[[Any, int], DdpTimes | None] = lambda wrapper, iteration: None
        self.is_loss_scale: Callable[[Any], bool] = lambda factor: False  # of a GradScaler
        #: Whether all parameters were in the graphs of all forwards so far; None where that is not searched.
        self.uses_all_parameters: Callable[[Any], bool | None] = lambda wrapper: None
        self.set_ddp_sampling: Callable[[Any, int], None] = lambda wrapper, every: None
        self.peak_memory: Callable[[int], int] | None = None  # the most that was used of a device, in bytes
        self.device_properties: Callable[[int], tuple[str, int]] | None = None  # name and memory of a device
        self.is_cuda_ready: Callable[[], bool] = lambda: False
        self.random_state: Callable[[], int] = lambda: 0  # a checksum of the generator that models draw from
        self.is_capturing: Callable[[], bool] = lambda: False  # a CUDA graph, in which no event may be recorded
        self.process_group: Callable[[], tuple[int, int, str] | None] = lambda: None  # rank, world size, backend
