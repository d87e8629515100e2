"""A training loop in three ways, in turns of blocks: unwatched, with the probe, and with one XADD per step.

python -m benchmarks.programs.watched_loop '{"loop": "linear", "blocks": 20, "steps": 1000, "redis": "unix://..."}'

Prints, for each way, the seconds of a step in each block: CPU time of the main thread, and time of the clock. Both
ends of the probe's pipe are real: a process reads what the sink's thread packs. Between blocks the functions that the
probe replaces are put back to those of torch, so "unwatched" is a process in which nobody has installed it. Each way
has passes over the data of its own: what a watched block goes over was watched from its beginning.
"""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, Literal

import redis
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from jobs.protocol.records import Hello
from workers.probe import probe
from workers.probe.descendants import Family, FamilySink
from workers.runtime.context import ChannelSink, RankContext, RankDevice

#: At most so many steps after a switch are not counted: caches of the interpreter, and the first step of a kind.
WARM_UP = 64
#: A step with an XADD takes long, and what that takes is known after few.
XADDS = 5
ENTRY: dict[Any, Any] = {"d": b"x" * 100}
ON_CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_CUDA else "cpu")
#: What the probe replaces of what these loops call: an attribute of each of these, or an entry.
PLACES: tuple[Any, ...] = (
    nn.Module,
    torch.autograd,
    torch.optim.Optimizer,
    _BaseDataLoaderIter,
    DistributedDataParallel,
)
HOOKS: tuple[dict[int, Any], ...] = (
    torch_optimizer._global_optimizer_pre_hooks,
    torch_optimizer._global_optimizer_post_hooks,
)

UNDER_DDP = "linear under ddp"

Step = Callable[[Any], None]


def main() -> None:
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as reader:
        assert reader.stdin is not None
        print(json.dumps(measure(reader.stdin.fileno(), **asked)), flush=True)


def measure(pipe: int, loop: str, blocks: int, steps: int, redis: str = "") -> dict[str, list[tuple[float, float]]]:
    switch = install(pipe)
    switch(True)
    step, batches = LOOPS[loop]()
    switch(False)
    plain = LOOPS[loop]()[0] if loop == UNDER_DDP else step  # the probe makes the wrapper measure more often
    steps_of: dict[str, Step] = {"off": plain, "on": step}
    if redis:
        steps_of["xadd"] = and_xadd(plain, redis)
    sides = {way: (act, forever(batches)) for way, act in steps_of.items()}
    counts = {way: max(1, steps // XADDS) if way == "xadd" else steps for way in sides}
    seconds: dict[str, list[tuple[float, float]]] = {way: [] for way in sides}
    gc.collect()
    gc.freeze()  # as in a rank, which is forked from a process that has done so
    for number in range(blocks + 1):
        for way, (act, feed) in sides.items():
            switch(way == "on")
            run(act, feed, min(steps // 5 + 5, WARM_UP))
            gc.collect()
            taken = run(act, feed, counts[way])
            if number:  # the first turn warms up
                seconds[way].append(taken)
    return seconds


def run(step: Step, feed: Iterator[Any], steps: int) -> tuple[float, float]:
    """Seconds of a step: the main thread's own, and the clock's."""
    cpu, clock = time.thread_time(), time.perf_counter()
    for _ in range(steps):
        step(next(feed))
    return (time.thread_time() - cpu) / steps, (time.perf_counter() - clock) / steps


def install(pipe: int) -> Callable[[bool], None]:
    """Install the probe as a script's rank has it. What comes back puts its wrappers in place, or takes them out."""
    before = [dict(vars(place)) for place in PLACES]
    kind: Literal["cpu", "cuda"] = "cuda" if ON_CUDA else "cpu"
    devices = (RankDevice(0, kind, f"{kind}:0"),)
    family = Family(
        address="", rank=0, world_size=1, devices=devices, lease_size=1, threads=1, rehearsed=False, output=""
    )
    sink = FamilySink(ChannelSink(pipe), family)
    sink.emit(Hello(0, 0, "started"))
    probe.install(RankContext(0, 1, devices, 1, 1, sink), rehearsed=False)
    changed = [
        (place, name, old[name], new)
        for place, old in zip(PLACES, before, strict=True)
        for name, new in vars(place).items()
        if name in old and old[name] is not new
    ]
    hooks = [dict(table) for table in HOOKS]
    join_a_group()

    def switch(on: bool) -> None:
        for place, name, plain, watched in changed:
            setattr(place, name, watched if on else plain)
        for table, own in zip(HOOKS, hooks, strict=True):
            table.clear()
            table.update(own if on else {})

    switch(False)
    return switch


def join_a_group() -> None:
    """Be the only rank of a group, for DistributedDataParallel."""
    dist.init_process_group("nccl" if ON_CUDA else "gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]


def and_xadd(step: Step, url: str) -> Step:
    client = redis.Redis.from_url(url)

    def act(batch: Any) -> None:
        step(batch)
        client.xadd("benchmark", ENTRY)

    return act


def forever(batches: Any) -> Iterator[Any]:
    for _ in cycle([None]):
        yield from batches


# -- loops -----------------------------------------------------------------------------------------


class Trivial(nn.Module):
    """As little as a module can do that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, device=DEVICE))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight


class Still(torch.optim.SGD):
    """An optimizer that changes nothing."""

    def step(self, closure: Any = None) -> Any:
        pass


def trivial() -> tuple[Step, Any]:
    """Every call that is watched, with nearly nothing in it: what is left of a step are the calls themselves."""
    net, criterion, leaf = Trivial(), nn.Identity(), torch.zeros((), device=DEVICE, requires_grad=True)
    optimizer = Still(net.parameters(), 0.01)
    batches = DataLoader(range(3000), 1, shuffle=True, collate_fn=_first)  # type: ignore[arg-type, var-annotated]
    x = torch.zeros(1, 5, device=DEVICE)

    def step(batch: Any) -> None:
        criterion(net(x))
        torch.autograd.backward(leaf, leaf.detach())
        optimizer.step()

    return step, batches


def _first(rows: list[Any]) -> Any:
    return rows[0]


def linear() -> tuple[Step, Any]:
    return learning(nn.Linear(5, 2), torch.randn(3000, 5), 2, 15)


def cnn(width: int = 16, side: int = 32, batch: int = 32) -> tuple[Step, Any]:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    blocks = [*block(3, width), *block(width, 2 * width), *block(2 * width, 4 * width)]
    net = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(4 * width * (side // 8) ** 2, 10))
    return learning(net, torch.randn(1024, 3, side, side), 10, batch)


def transformer(width: int = 64, heads: int = 4, length: int = 32, batch: int = 16) -> tuple[Step, Any]:
    layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True)
    body = nn.TransformerEncoder(layer, 6)
    net = nn.Sequential(nn.Embedding(100, width), body, nn.Flatten(), nn.Linear(width * length, 10))
    return learning(net, torch.randint(0, 100, (1024, length)), 10, batch)


def ddp() -> tuple[Step, Any]:
    """The linear loop of one rank of a group that has no other: all that is added by DistributedDataParallel itself is
    in the unwatched step as well."""
    return learning(DistributedDataParallel(nn.Linear(5, 2).to(DEVICE)), torch.randn(3000, 5), 2, 15)


def learning(net: nn.Module, inputs: torch.Tensor, classes: int, batch: int) -> tuple[Step, Any]:
    """What people write: a model, a loss, an optimizer, a loader."""
    net.to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    criterion = nn.CrossEntropyLoss()
    data = TensorDataset(inputs, torch.randint(0, classes, (len(inputs),)))

    def step(batch: Any) -> None:
        x, y = batch
        if ON_CUDA:
            x, y = x.to(DEVICE), y.to(DEVICE)
        optimizer.zero_grad()
        criterion(net(x), y).backward()
        optimizer.step()

    return step, DataLoader(data, batch, shuffle=True)


#: The narrow ones have as many modules, and little to compute: what the probe adds is not lost in what a step takes.
LOOPS: dict[str, Callable[[], tuple[Step, Any]]] = {
    "trivial": trivial,
    "linear": linear,
    UNDER_DDP: ddp,
    "narrow cnn": lambda: cnn(1, 8, 4),
    "narrow transformer": lambda: transformer(2, 1, 4, 4),
    "cnn": cnn,
    "transformer": transformer,
}


if __name__ == "__main__":
    main()
