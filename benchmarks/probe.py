"""What it costs to be watched: the same training loop with the probe and without it, side by side.

    .venv/bin/python benchmarks/probe.py             rounds of each, a table, and a file in benchmarks/results/
    .venv/bin/python benchmarks/probe.py --rounds 9

Each side of each round is a process of its own, since the probe cannot be taken out of one again. Rounds go without,
with, without, with, so that both see the same machine. README.md has the method and its caveats.
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
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ROUNDS = 7
DEADLINE_SECONDS = 300.0
#: Steps before the ones that are timed.
WARM_UP = 20
#: Model, and steps that are timed in each round.
STEPS = {"linear": 3000, "cnn": 80, "transformer": 80}


def main() -> None:
    parser = argparse.ArgumentParser(description="A training loop with the probe against without it.")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each model and side; default {ROUNDS}")
    parser.add_argument("--child", nargs=2, metavar=("MODEL", "SIDE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run(*options.child)))
        return
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    console = Console()
    result = summary({model: measure(model, options.rounds, console) for model in STEPS})
    show(result, console)
    console.print(f"written to {write(result)}", highlight=False)


# -- one side, in a process of its own -----------------------------------------------------------------


def run(model: str, side: str) -> dict[str, float]:
    """Microseconds of one step: the median of the clock, and the mean of what the process computed."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    finish = watch() if side == "with" else lambda: None
    step, batches = LOOPS[model](torch)
    feed = batches_forever(batches)
    for batch in islice(feed, WARM_UP):
        step(batch)
    times, computed = [], time.process_time()
    for _ in range(STEPS[model]):
        began = time.perf_counter()
        step(next(feed))
        times.append(time.perf_counter() - began)
    computed = time.process_time() - computed
    finish()
    return {"step_us": median(times) * 1e6, "cpu_us": computed / STEPS[model] * 1e6}


def watch() -> Callable[[], None]:
    """Install the probe as a rank has it, with a channel that somebody empties."""
    from workers.training.context import ChannelSink, Device, RankContext
    from workers.training.probe import script

    sink = ChannelSink(os.open(os.devnull, os.O_WRONLY))
    probe = script.install(RankContext(0, 1, (Device(0, "cpu", "cpu:0"),), 1, 1, sink), rehearsed=False)

    def finish() -> None:
        probe.finish()
        sink.close()

    return finish


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


# -- both sides ----------------------------------------------------------------------------------------


def measure(model: str, rounds: int, console: Console) -> dict[str, list[dict[str, float]]]:
    samples: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
    for number in range(rounds):
        for side, kept in samples.items():
            command = [sys.executable, __file__, "--child", model, side]
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, check=True)
            kept.append(json.loads(done.stdout) | {"load": os.getloadavg()[0]})
        console.print(f"{model}: round {number + 1} of {rounds}", highlight=False)
    return samples


def summary(samples: dict[str, dict[str, list[dict[str, float]]]]) -> dict[str, Any]:
    return {
        "benchmark": "probe",
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cpu_count": os.cpu_count(), "platform": platform.platform(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("torch", "msgspec")},
        "models": {model: compare(sides) for model, sides in samples.items()},
    }


def compare(sides: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Ratios are those of neighbours in time, so that what else the machine does counts for both."""
    found: dict[str, Any] = {"runs": sides}
    for number in ("step_us", "cpu_us"):
        pairs = [(a[number], b[number]) for a, b in zip(sides["without"], sides["with"], strict=True)]
        found[number] = {
            "without": median(a for a, _ in pairs),
            "with": median(b for _, b in pairs),
            "added": median(b - a for a, b in pairs),
            "ratio": median(b / a for a, b in pairs),
        }
    return found


def show(result: dict[str, Any], console: Console) -> None:
    table = Table("model", "", "without", "with", "added", "ratio", title="microseconds a step")
    for model, found in result["models"].items():
        for number, words in (("step_us", "clock, median step"), ("cpu_us", "computed, mean")):
            row = found[number]
            figures = (f"{row[side]:.1f}" for side in ("without", "with", "added"))
            table.add_row(model, words, *figures, f"{row['ratio']:.3f}")
    console.print(table)


def write(result: dict[str, Any]) -> Path:
    path = RESULTS / f"probe-{datetime.now(UTC).date()}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


if __name__ == "__main__":
    main()
