"""Makes one device slow on purpose, so that users can see how the report shows it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from jobs.model.spec import JobSpec
from workers.runtime.context import RankContext


@dataclass(frozen=True, slots=True)
class PlantedSlowness:
    """`device` (logical) sleeps `seconds` in each batch: while it waits for input, in forward, or in backward."""

    device: int
    where: str
    seconds: float

    def hold_input(self, device: int) -> None:
        """Sleep if the input of the slow device has arrived."""
        if self.where == "input" and device == self.device:
            time.sleep(self.seconds)

    def slow_down(self, device: int, module: Callable[..., Any]) -> Callable[..., Any]:
        """`module`, made slow in the requested part if it runs on the slow device."""
        if self.where == "input" or device != self.device:
            return module

        def call(*args: Any, **kwargs: Any) -> Any:
            return self.slow_outputs(module(*args, **kwargs))

        return call

    def slow_outputs(self, outputs: Any) -> Any:
        """Delay outputs, or their backward."""
        if self.where == "forward":
            time.sleep(self.seconds)
            return outputs
        if isinstance(outputs, torch.Tensor) and outputs.requires_grad:
            return _SleepInBackward.apply(outputs, self.seconds)  # type: ignore[no-untyped-call]
        return outputs


class _SleepInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return outputs.view_as(outputs)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(ctx.seconds)
        return grad, None


def find_straggler(spec: JobSpec, context: RankContext) -> PlantedSlowness | None:
    """The straggler among this rank's devices, if the spec has one."""
    wanted = spec.recipe.straggler
    if wanted is None:
        return None
    device = wanted.device if wanted.rank is None else wanted.rank
    if device is None or all(own.logical != device for own in context.devices):
        return None
    return PlantedSlowness(device, wanted.where, wanted.milliseconds / 1000)
