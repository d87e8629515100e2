"""The probe: records how a program that we did not write divides its work, without a change to the program.

`install` is called in a rank before the program runs, and puts small wrappers around functions of torch (`patches`).
torch is not imported for it: where it is not imported yet, the wrappers are put in place when it has been.

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
- Where no optimizer steps, each backward ends a step of phase train with all forwards since the last one, and a forward
  whose graph is gone before a backward is one of phase *forward*; a note says so.
- Rows are the first dimension of the first input (the dimension of DataParallel, the number of sequences of a packed
  one), compared with the batches of the DataLoader. Where these disagree rows are `None`, and a note says why.
- The only model of a program has the name ""; others that come after it have the name of their class.
- Every number that could not be seen is `None`, with a note.

A wrapper that fails turns the whole probe off, and a note says so. It never raises into the program.
"""

import os
from collections.abc import Callable

from jobs.protocol.records import DeviceInfo, Note
from workers.probe.patches import torch_functions
from workers.probe.tracker import GuardedTracker
from workers.runtime.context import ChannelSink, RankContext, innermost_sink
from workers.runtime.cpu_name import read_cpu_name
from workers.runtime.import_callbacks import when_imported

VIRTUAL_MEMORY = "virtual devices share the memory of the host"
CUDA_MEMORY = "of the process's own tensors, read on the first ten steps and every tenth"


class Probe:
    """What watches one process."""

    def __init__(self, context: RankContext, *, rehearsed: bool) -> None:
        self.guarded = GuardedTracker(context, rehearsed=rehearsed)
        self.on_fork: Callable[[], None] = lambda: None  # called in a forked child, in which the probe is off
        channel = innermost_sink(context.sink)
        if isinstance(channel, ChannelSink):
            channel.before_send.append(self._flush)

    def restart_in_child(self) -> None:
        """Watch a forked child as a process of its own. Its splits have ids that no other process of the rank gives."""
        optimizers = self.guarded.tracker.models.optimizers
        self.guarded.restart(os.getpid() << 32)
        for optimizer in optimizers:
            self.guarded.tracker.models.add_optimizer(optimizer)

    def finish(self) -> None:
        """Send everything that still waits. The wrappers stay, and do nothing any more."""
        if self.guarded.on:
            self.guarded.call_guarded("finish", self.guarded.tracker.finish)
        self.guarded.profiler.finish()
        self.guarded.switch_off()

    def _flush(self) -> None:
        if self.guarded.on:
            self.guarded.call_guarded("a step on the fast path", self.guarded.fast_path.flush_and_announce)
            self.guarded.call_guarded("a step that nothing follows", self.guarded.tracker.builder.settle_quiet)

    def after_fork(self) -> None:
        """A forked child has neither the sink's thread nor a claim to the rank's steps."""
        self.guarded.switch_off()
        self.on_fork()


def install(context: RankContext, *, rehearsed: bool) -> Probe:
    """Watch everything that this process does with torch from now on. Call it before the program runs, and after
    whatever else replaces functions of torch. `rehearsed`: the devices are virtual, and torch presents them as real."""
    probe = Probe(context, rehearsed=rehearsed)
    os.register_at_fork(after_in_child=probe.after_fork)
    probe.guarded.call_guarded("torch", when_imported, torch_functions.patches_by_module(probe.guarded))
    probe.guarded.call_guarded("devices", describe_devices, context)
    return probe


def describe_devices(context: RankContext) -> None:
    """Send what is known of the devices without touching them: nothing may initialise CUDA before the program does."""
    if context.device_kind == "cpu":
        for device in context.devices:
            context.sink.emit(DeviceInfo(device.logical, f"virtual device on {read_cpu_name()}"))
        context.sink.emit(Note("devices.memory_total_bytes", VIRTUAL_MEMORY))
        context.sink.emit(Note("per_device.memory_peak_bytes", VIRTUAL_MEMORY))
    else:
        context.sink.emit(Note("per_device.memory_peak_bytes", CUDA_MEMORY))
