"""The recorder of a rank that has one device, which computes on the host: nearly every step of nearly every job.

Its times are numbers as soon as they are taken. So a step is one record that is made at its end, and nothing is kept
for it before but a few numbers. Shapes are read in every forward, since rows are counted and never assumed.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from jobs.protocol.records import MAX_INTERNED, Shape, Step
from workers.probe.recorder import Recorder
from workers.probe.shapes import rows_of, shape_of, shape_of_arguments
from workers.probe.step_records import Shard
from workers.runtime.context import RankContext


class SingleDeviceRecorder(Recorder):
    """Sends what `Recorder` sends, where every call of the measured module is one forward on the rank's only device.

    It is itself the context of the step that is open: there is no step within a step.
    """

    def __init__(self, context: RankContext, *, module: str = "", times_whole_backward: bool = False) -> None:
        super().__init__(context, module=module, times_whole_backward=times_whole_backward)
        self._in_step = False
        self._step_head: tuple[int, int, str, float | None] = 0, 0, "", None  # number, epoch, phase, waited for data
        self._phase = ""
        self._split_ids: tuple[int, ...] = ()  # of the step's splits
        self._forward_seconds = 0.0
        self._backward_seconds: float | None = None
        self._input_shape: Shape | None = None  # shapes of the last forward, and the id of its split
        self._output_shape: Shape | None = None
        self._last_split: tuple[int, ...] = ()
        self._began = 0.0

    def step(self, phase: str, epoch: int, data_wait_ms: float | None) -> AbstractContextManager[object]:
        number = self._next_step[phase]
        self._next_step[phase] = number + 1
        if phase != self._phase:
            self._phase, self._last_split = phase, ()
        self._step_head = number, epoch, phase, data_wait_ms
        self._split_ids, self._forward_seconds, self._backward_seconds = (), 0.0, None
        self._in_step = True
        return self

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """The step is over: send it, unless it failed."""
        step_ms = (time.perf_counter() - self._began) * 1000.0
        self._in_step = False
        if kind is not None:
            return
        number, epoch, phase, waited_ms = self._step_head
        backward_ms = None if self._backward_seconds is None else self._backward_seconds * 1000.0
        comm_ms = None
        if phase == "train" and not self._times_whole_backward:
            times = self.read_ddp_times()
            # Without them, the backward of some batches of the step may be known, and is not that of the step.
            backward_ms = None if times is None else (backward_ms or 0.0) + times.backward_ms
            comm_ms = None if times is None else times.comm_ms
        forward_ms = self._forward_seconds * 1000.0 if self._split_ids else None
        self._sink.emit(
            Step(
                number,
                epoch,
                phase,
                self._split_ids,
                time.time(),
                step_ms,
                waited_ms,
                (forward_ms,),
                (backward_ms,),
                comm_ms,
            )
        )

    def backward(self, backward: Callable[[], object], *, alone: bool = False) -> None:
        began = time.perf_counter()
        backward()
        if self._times_whole_backward or alone:
            self._backward_seconds = (self._backward_seconds or 0.0) + time.perf_counter() - began

    def watch_module(self, module: nn.Module, position: int, *, is_whole: bool = False) -> None:
        """Measure every call of `module` as one forward. A function in place of its own costs less than hooks do."""
        forward: Callable[..., Any] = module.forward
        clock, plain = time.perf_counter, torch.Tensor

        def measured(*args: Any, **kwargs: Any) -> Any:
            began = clock()
            outputs = forward(*args, **kwargs)
            if self._in_step:
                self._forward_seconds += clock() - began
                inputs = args[0].shape if args and type(args[0]) is plain else shape_of_arguments(args, kwargs)
                outputs_shape = outputs.shape if type(outputs) is plain else shape_of(outputs)
                if inputs == self._input_shape and outputs_shape == self._output_shape and self._last_split:
                    self._split_ids += self._last_split
                else:
                    self._add_split(inputs, outputs_shape)
            return outputs

        module.forward = measured

    def _add_split(self, inputs: Shape | None, outputs_shape: Shape | None) -> None:
        """A forward with other shapes than the one before it, or in another phase. Ids beyond `MAX_INTERNED` are good
        for one step."""
        self._input_shape, self._output_shape = inputs, outputs_shape
        shard = Shard(_plain_tuple(inputs), _plain_tuple(outputs_shape), [])
        rows: Callable[[Shape | None], int | None] = lambda shape: rows_of(shape, self._dim)  # noqa: E731
        number = self._splits.split_id(self._phase, self._module, rows(inputs), self._devices, [shard], rows)
        self._last_split = (number,) if number < MAX_INTERNED else ()
        self._split_ids += (number,)


def _plain_tuple(shape: Shape | None) -> Shape | None:
    """torch's own kind of shape is no plain tuple, and would be kept as it is."""
    return None if shape is None else tuple(shape)
