"""The probe: sees how a program that we did not write divides its work, without a change to it.

`install` is called in a rank before the program runs, and puts small wrappers around functions of torch (`hooks`).
torch is not imported for it: where it is not there yet, the wrappers are put in place when it has been imported.

What counts as what
- A *forward* is the outermost call of a module that has parameters, or of a wrapped module inside one: of
  DataParallel in `Net.features`, the call of `features` counts, and its path says so. What is called within it, by the
  autograd engine (checkpointing computes again there), while tracing, or on fake tensors, does not count.
- Parts that a method of their module calls, while the module itself was not called (`net.forward(x)`, `net.encode(x)`,
  a `training_step`), are together one forward of that module: its input is that of the first part, its output that of
  the last.
- *DataParallel* divides a batch: rows, shapes and times are those of its replicas. Under all other wrappers, and
  without one, a forward is a shard of one: that of the device of this process.
- A *train* step is what lies between two outermost optimizer steps: all forwards since the last one belong to it, as
  far as some optimizer has parameters of the model (a frozen teacher or a perceptual loss is left out). So gradient
  accumulation gives a step with several forwards, and a GAN gives two steps for each batch, one for each optimizer.
  Closures of an optimizer run within its step. A step that GradScaler skips is a step.
- An *eval* step is one forward without gradients, or in eval mode unless a backward follows it. The mode is that of
  the inner module. Models without optimizers count here.
- Where no optimizer steps, each backward ends a step of phase train, and a forward that is followed by none is one of
  phase *forward*; a note says so.
- Rows are the first dimension of the first input (the dimension of DataParallel, the number of sequences of a packed
  one), compared with the batches of the DataLoader. Where these disagree rows are `None`, and a note says why.
- The only model of a program has the name ""; others that come after it have the name of their class.
- Every number that could not be seen is `None`, with a note.

A wrapper that fails turns the whole probe off, and a note says so. It never raises into the program.
"""

import contextlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from jobs.protocol.records import DeviceInfo, Note
from workers.probe import patches
from workers.probe.fast_path import AWAY
from workers.probe.step_builder import Forward
from workers.probe.tracker import Here, Torch, Watch, Where
from workers.runtime.context import ChannelSink, RankContext, innermost
from workers.runtime.cpu_name import processor
from workers.runtime.import_callbacks import Finder, when_imported

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")

VIRTUAL_MEMORY = "virtual devices share the memory of the host"
CUDA_MEMORY = "of the process's own tensors, read on the first ten steps and every tenth"


class Probe:
    """What is put around torch in one process. `on` is what every wrapper asks first."""

    def __init__(self, context: RankContext, *, rehearsed: bool) -> None:
        self.on = True
        self.rehearsed = rehearsed
        self.here = Here()
        self.torch = Torch()
        self.forked: Callable[[], None] = lambda: None  # called in a forked child, in which the probe is off
        self.module_calls: tuple[Any, Any] | None = None  # Module.__call__ as it was, and as it is
        self.finder: Finder | None = None
        self.context = context
        self.watch = Watch(context, self.torch, self.here, rehearsed=rehearsed)
        self.usual = self.watch.usual
        channel = innermost(context.sink)
        if isinstance(channel, ChannelSink):
            channel.chores.append(self._tell_of_now)
        self._on_device = _nowhere if context.streams is None else context.streams.on

    def begin_anew(self) -> None:
        """Watch a forked child as a process of its own. Its splits have ids that no other process of the rank gives."""
        self.here.now = Where()
        optimizers = self.watch.models.optimizers
        self.watch = Watch(self.context, self.torch, self.here, os.getpid() << 32, rehearsed=self.rehearsed)
        self.usual = self.watch.usual
        for optimizer in optimizers:
            self.watch.models.optimizer_made(optimizer)
        self.on = True

    def finish(self) -> None:
        """Send what is owed. The wrappers stay, and do nothing any more."""
        if self.on:
            self.guarded("finish", self.watch.finish)
        self.on, self.usual.stage = False, AWAY

    def _tell_of_now(self) -> None:
        if self.on:
            self.guarded("a usual step", self.usual.tell_of_now)

    # -- what the wrappers call --------------------------------------------------------------------

    def begin(self, module: "nn.Module", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Forward | None:
        try:
            return self.watch.begin(module, args, kwargs)
        except Exception as error:  # noqa: BLE001  (whatever it is, it must not reach the program)
            self.failed("a forward", error)
            return None

    def end(self, forward: Forward, outputs: Any) -> None:
        try:
            self.watch.end(forward, outputs)
        except Exception as error:  # noqa: BLE001
            self.failed("a forward", error)

    def guarded(self, what: str, function: Callable[..., T], *args: Any) -> T | None:
        """What `function` returns; None when it fails, which turns the probe off."""
        try:
            return function(*args)
        except Exception as error:  # noqa: BLE001
            self.failed(what, error)
            return None

    def failed(self, what: str, error: Exception) -> None:
        """Turn the probe off and say so."""
        if not self.on:
            return
        self.on, self.usual.stage = False, AWAY
        with contextlib.suppress(Exception):
            reason = f"{type(error).__name__}: {error}"[:500]
            self.context.sink.emit(Note("patterns", f"the probe turned itself off while it watched {what}: {reason}"))

    def on_device(self, slot: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a replica with what it prints going to the log of its device."""
        with self._on_device(slot):
            return module(*args, **kwargs)

    def in_child(self) -> None:
        """A forked child has neither the sink's thread nor a claim to the rank's steps."""
        self.on = False
        self.usual.stage = AWAY
        self.forked()


def install(context: RankContext, *, rehearsed: bool) -> Probe:
    """Watch everything that this process does with torch from now on. Call it before the program runs, and after
    whatever else replaces functions of torch. `rehearsed`: the devices are virtual, and torch believes in them."""
    probe = Probe(context, rehearsed=rehearsed)
    os.register_at_fork(after_in_child=probe.in_child)
    probe.guarded("torch", _watch_torch, probe)
    probe.guarded("devices", describe_devices, context)
    return probe


def _watch_torch(probe: Probe) -> None:
    callbacks: dict[str, Callable[[ModuleType], None]] = patches.patches(probe)
    probe.finder = when_imported(callbacks)


def _nowhere(slot: int) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def describe_devices(context: RankContext) -> None:
    """What is known of the devices without touching them: nothing may initialise CUDA before the program does."""
    if context.kind == "cpu":
        for device in context.devices:
            context.sink.emit(DeviceInfo(device.logical, f"virtual device on {processor()}"))
        context.sink.emit(Note("devices.memory_total_bytes", VIRTUAL_MEMORY))
        context.sink.emit(Note("per_device.memory_peak_bytes", VIRTUAL_MEMORY))
    else:
        context.sink.emit(Note("per_device.memory_peak_bytes", CUDA_MEMORY))
