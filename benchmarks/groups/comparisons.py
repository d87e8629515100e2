"""Nine variants of a training run, fifty steps each: a comparison by the service against nine launches of torchrun.

Both train a linear layer from 5 to 2 on random vectors, 60 rows in each step, cross entropy, SGD, one thread a process,
under three strategies on 1, 2 and 4 devices, one variant after another:

shardyard   from just before the POST of the comparison to its report, with dp, ddp and fsdp
torchrun    nine times `torchrun --standalone` of `programs/training_loop.py`, from just before the first is started to
            the end of the last: with as many ranks as the variant has processes, that is one for dp. It trains with
            DistributedDataParallel throughout and reports nothing, which makes it easier than what it stands for
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import peers
from benchmarks.harness.comparing import Figure, Say, Scale, in_turns, times_better
from benchmarks.harness.service import Service, service

TITLE = "A comparison of nine variants"
PROGRAM = Path(__file__).parents[1] / "programs" / "training_loop.py"
STRATEGIES, DEVICES = ("dp", "ddp", "fsdp"), (1, 2, 4)
STEPS, WARM_UP, ROWS = 50, 10, 60
POLL_SECONDS = 0.1
DEADLINE_SECONDS = 300.0


def run(scale: Scale, say: Say) -> list[Figure]:
    with service(f"cpu:{max(DEVICES)}") as ours:
        sides: dict[str, Callable[[], float]] = {"shardyard": partial(compare, ours), "torchrun": launch_all}
        samples = in_turns(sides, scale.rounds_of(3, 1), say=say, warm_up=int(not scale.quick))
    return [Figure("POST to the report of nine variants", "s", samples, [times_better("torchrun", 10)])]


def spec() -> dict[str, Any]:
    return {
        "name": "bench",
        "program": {
            "model": {"ref": "linear", "args": {"in_features": 5, "out_features": 2}},
            "data": {"ref": "random_vectors", "args": {"rows": 3000, "features": 5}, "batch_size": ROWS},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "sgd", "args": {"lr": 0.01}},
        },
    }


def compare(ours: Service) -> float:
    """Seconds.

    Raises:
        RuntimeError: a variant did not succeed, or it took too long.
    """
    began = time.perf_counter()
    found = ours.client.compare(spec(), strategies=STRATEGIES, devices=DEVICES, steps=STEPS)
    while not found.ended:
        if time.perf_counter() - began > DEADLINE_SECONDS:
            raise RuntimeError(f"the comparison has not ended: {found.counts}")
        time.sleep(POLL_SECONDS)
        found = ours.client.comparison(found.id)
    report = ours.client.comparison_report(found.id)
    took = time.perf_counter() - began
    if found.counts != {"succeeded": len(STRATEGIES) * len(DEVICES)}:
        raise RuntimeError(f"not all variants succeeded: {found.counts}")
    if any(one.rows_per_second is None for one in report.variants):
        raise RuntimeError("a variant was not measured")
    return took


def launch_all() -> float:
    """Seconds. Raises as `peers.torchrun` does."""
    began = time.perf_counter()
    for devices in DEVICES:
        for strategy in STRATEGIES:
            ranks = 1 if strategy == "dp" else devices
            launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
            peers.run_to_end([*launch, str(PROGRAM), "linear", str(STEPS), str(WARM_UP)], DEADLINE_SECONDS)
    return time.perf_counter() - began
