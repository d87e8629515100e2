"""What DataParallel costs: ours on virtual devices, and torch's own, against the plain module.

One training step (forward, backward, optimizer) of a multi-layer perceptron, in turns in one process: the plain
module; DataParallel on two virtual devices (`workers.training.data_parallel`) as it is, and traced, as a job of
strategy dp has it, with a recorder that sends what each device got. Where there is a GPU, also torch's
nn.DataParallel with `device_ids` [0] and [0, 0], where its primitives are not bypassed.

Virtual devices compute one after another, so a step cannot be quicker than the plain one: the difference is what
copies, threads and bookkeeping cost, and the four primitives say where. Three models (number of parameters and
modules) and three batch sizes.
"""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.harness.comparing import Figure, Say, Scale
from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import Step
from workers.probe.recorder import Recorder
from workers.runtime.context import ChannelSink, NullSink, RankContext, RankDevice
from workers.training.data_parallel import TracedDataParallel

TITLE = "DataParallel: its primitives on virtual devices, against the plain module"

#: Hidden layers, and their width.
MODELS = ((2, 32), (8, 64), (32, 128))
BATCHES = (16, 128, 1024)
FEATURES, CLASSES = 32, 10
PRIMITIVES = ("replicate", "scatter", "parallel_apply", "gather")
PLAIN, VIRTUAL, TRACED = "plain module", "virtual DataParallel", "traced DataParallel"
ON_CUDA = torch.cuda.is_available()
DEVICES = (RankDevice(0, "cpu", "cpu:0"), RankDevice(1, "cpu", "cpu:1"))


@dataclass
class Tee:
    """Hands records on, and adds up what steps say of the primitives, in seconds."""

    sink: ChannelSink
    steps: int = 0
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PRIMITIVES, 0.0))

    def emit(self, record: AnyRecord) -> None:
        self.sink.emit(record)
        if isinstance(record, Step) and record.primitives is not None:
            self.steps += 1
            for name in PRIMITIVES:
                self.spent[name] += getattr(record.primitives, f"{name}_ms") / 1000.0


def run(scale: Scale, say: Say) -> list[Figure]:
    torch.set_num_threads(1)
    figures = []
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        sink = ChannelSink(reader.stdin.fileno())
        for layers, width in MODELS:
            figures += compare(layers, width, BATCHES[1], "parameters", sink, scale)
            say(f"{layers} layers of {width}")
        for batch in BATCHES:
            figures += compare(*MODELS[1], batch, "rows", sink, scale)
            say(f"{batch} rows")
        sink.close()
    return figures


def compare(layers: int, width: int, batch: int, size_of: str, sink: ChannelSink, scale: Scale) -> list[Figure]:
    """Time of a step on each side, and of each primitive of the traced one."""
    tee = Tee(sink)
    sides = {name: step_of(make(layers, width), batch) for name, make in makers().items()}
    sides[TRACED] = traced_step(network(layers, width), batch, tee)
    steps = scale.pick(20, 4)
    seconds: dict[str, list[float]] = {name: [] for name in (TRACED, *sides)}
    primitives: dict[str, list[float]] = {name: [] for name in PRIMITIVES}
    for turn in range(scale.rounds_of(5, 3) + 1):
        for name, step in sides.items():
            tee.steps, tee.spent = 0, dict.fromkeys(PRIMITIVES, 0.0)
            taken = median(timed(step) for _ in range(steps))
            if turn:  # the first one warms up
                seconds[name].append(taken)
                if name == TRACED:
                    for primitive in PRIMITIVES:
                        primitives[primitive].append(tee.spent[primitive] / tee.steps)
    parameters = sum(each.numel() for each in network(layers, width).parameters())
    size = parameters if size_of == "parameters" else batch
    whole = Figure(f"training step, by {size_of}", "s", seconds, size=size, size_of=size_of)
    parts = [
        Figure(f"{name}, by {size_of}", "s", {TRACED: spent}, size=size, size_of=size_of)
        for name, spent in primitives.items()
    ]
    return [whole, *parts]


def network(layers: int, width: int) -> nn.Module:
    hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), *hidden, nn.Linear(width, CLASSES))


def makers() -> dict[str, Callable[[int, int], nn.Module]]:
    found: dict[str, Callable[[int, int], nn.Module]] = {
        PLAIN: network,
        VIRTUAL: lambda layers, width: unrecorded(network(layers, width)),
    }
    if ON_CUDA:
        found["plain module on cuda"] = lambda layers, width: network(layers, width).cuda()
        for ids in ([0], [0, 0]):
            found[f"nn.DataParallel {ids}"] = lambda layers, width, ids=ids: nn.DataParallel(  # type: ignore[misc]
                network(layers, width).cuda(), ids
            )
    return found


def step_of(net: nn.Module, batch: int) -> Callable[[], None]:
    device = next(net.parameters()).device
    x, y = torch.randn(batch, FEATURES, device=device), torch.randint(0, CLASSES, (batch,), device=device)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)

    def step() -> None:
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def unrecorded(net: nn.Module) -> nn.Module:
    """Outside of a step, a recorder records nothing."""
    return TracedDataParallel(
        net, [0, 1], virtual=True, observer=Recorder(RankContext(0, 1, DEVICES, 2, 1, NullSink()))
    )


def traced_step(net: nn.Module, batch: int, tee: Tee) -> Callable[[], None]:
    recorder = Recorder(RankContext(0, 1, DEVICES, 2, 1, tee))
    step = step_of(TracedDataParallel(net, [0, 1], virtual=True, observer=recorder), batch)

    def traced() -> None:
        with recorder.step("train", 0, None):
            step()

    return traced


def timed(step: Callable[[], None]) -> float:
    began = time.perf_counter()
    step()
    return time.perf_counter() - began
