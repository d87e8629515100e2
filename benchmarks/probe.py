"""What it costs to be watched: the same training loop with the probe and without it, side by side.

    .venv/bin/python benchmarks/probe.py             rounds of each model, a table, and a file in benchmarks/results/
    .venv/bin/python benchmarks/probe.py --rounds 9

Each round of each model is a process of its own, in which the probe is switched on and off every few steps, so that
both sides see the same machine. README.md has the method and its caveats.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import cycle, islice, product
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ROUNDS = 5
DEADLINE_SECONDS = 300.0
WARM_UP = 20
#: Model, and pairs of blocks that are timed in each round.
PAIRS = {"linear": 200, "cnn": 12, "transformer": 12}
#: Steps of a block. The first one is not counted: it pays for the switch.
BLOCK = 9


def main() -> None:
    parser = argparse.ArgumentParser(description="A training loop with the probe against without it.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each model and side; default {ROUNDS}")
    parser.add_argument("--child", choices=PAIRS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run(options.child)))
        return
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    console = Console()
    result = summary({model: measure(model, options.rounds, console) for model in PAIRS})
    show(result, console)
    console.print(f"written to {write(result)}", highlight=False)


# -- one round, in a process of its own ----------------------------------------------------------------


def run(model: str) -> dict[str, float]:
    """Microseconds of one step, the median of each side."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    switch = watch()
    step, batches = LOOPS[model](torch)
    feed = batches_forever(batches)
    for batch in islice(feed, WARM_UP):
        step(batch)
    times: dict[bool, list[float]] = {False: [], True: []}
    for _, on in product(range(PAIRS[model]), (False, True)):
        switch(on)
        times[on] += [timed(step, feed) for _ in range(BLOCK)][1:]
    return {"without": median(times[False]) * 1e6, "with": median(times[True]) * 1e6}


def timed(step: Callable[[Any], None], feed: Iterator[Any]) -> float:
    """Seconds of one step, the wait for its batch included."""
    began = time.perf_counter()
    step(next(feed))
    return time.perf_counter() - began


def watch() -> Callable[[bool], None]:
    """Install the probe as a rank has it, with a channel that is emptied. What comes back turns it on and off."""
    from torch import nn

    from workers.training.context import ChannelSink, Device, RankContext
    from workers.training.probe import script

    plain = nn.Module.__call__
    sink = ChannelSink(os.open(os.devnull, os.O_WRONLY))
    probe = script.install(RankContext(0, 1, (Device(0, "cpu", "cpu:0"),), 1, 1, sink), rehearsed=False)
    watched = nn.Module.__call__

    def switch(on: bool) -> None:
        probe.on = on
        nn.Module.__call__ = watched if on else plain  # type: ignore[method-assign]

    return switch


def batches_forever(batches: Any) -> Iterator[Any]:
    for _ in cycle([None]):
        yield from batches


def linear(torch: Any) -> tuple[Callable[[Any], None], Any]:
    return loop(torch, torch.nn.Linear(5, 2), torch.randn(3000, 5), torch.randint(0, 2, (3000,)), 15)


def cnn(torch: Any) -> tuple[Callable[[Any], None], Any]:
    nn = torch.nn

    def block(inputs: int, outputs: int) -> list[Any]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    blocks = [*block(3, 16), *block(16, 32), *block(32, 64)]
    net = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 16, 10))
    return loop(torch, net, torch.randn(1024, 3, 32, 32), torch.randint(0, 10, (1024,)), 32)


def transformer(torch: Any) -> tuple[Callable[[Any], None], Any]:
    nn = torch.nn
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    body = nn.TransformerEncoder(layer, 6)
    net = nn.Sequential(nn.Embedding(100, 64), body, nn.Flatten(), nn.Linear(64 * 32, 10))
    return loop(torch, net, torch.randint(0, 100, (1024, 32)), torch.randint(0, 10, (1024,)), 16)


def loop(torch: Any, net: Any, inputs: Any, targets: Any, batch_size: int) -> tuple[Callable[[Any], None], Any]:
    """What people write: a model, a loss, an optimizer, a loader."""
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    criterion = torch.nn.CrossEntropyLoss()
    data = torch.utils.data.TensorDataset(inputs, targets)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        criterion(net(batch[0]), batch[1]).backward()
        optimizer.step()

    return step, torch.utils.data.DataLoader(data, batch_size, shuffle=True)


LOOPS: dict[str, Callable[[Any], tuple[Callable[[Any], None], Any]]] = {
    "linear": linear,
    "cnn": cnn,
    "transformer": transformer,
}


# -- all rounds ----------------------------------------------------------------------------------------


def measure(model: str, rounds: int, console: Console) -> list[dict[str, float]]:
    samples = []
    for number in range(rounds):
        command = [sys.executable, __file__, "--child", model]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True)
        samples.append(json.loads(done.stdout) | {"load": os.getloadavg()[0]})
        console.print(f"{model}: round {number + 1} of {rounds}", highlight=False)
    return samples


def summary(samples: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    return {
        "benchmark": "probe",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpu_count": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("torch", "msgspec")},
        "models": {model: compare(runs) for model, runs in samples.items()},
    }


def compare(runs: list[dict[str, float]]) -> dict[str, Any]:
    ratios = [run["with"] / run["without"] for run in runs]
    return {
        "without_us": median(run["without"] for run in runs),
        "with_us": median(run["with"] for run in runs),
        "added_us": median(run["with"] - run["without"] for run in runs),
        "ratio": median(ratios),
        "ratios": [min(ratios), max(ratios)],
        "runs": runs,
    }


def show(result: dict[str, Any], console: Console) -> None:
    table = Table("model", "without", "with", "added", "ratio", "lowest to highest", title="microseconds a step")
    for model, found in result["models"].items():
        figures = (f"{found[name]:.1f}" for name in ("without_us", "with_us", "added_us"))
        low, high = found["ratios"]
        table.add_row(model, *figures, f"{found['ratio']:.3f}", f"{low:.3f} to {high:.3f}")
    console.print(table)


def write(result: dict[str, Any]) -> Path:
    path = RESULTS / f"probe-{datetime.now(UTC).date()}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


if __name__ == "__main__":
    main()
