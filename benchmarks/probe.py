"""What it costs an unedited script to be watched: CPU time of its main thread, in each step.

Three ways of one loop, in one process, in turns of blocks (`programs/watched_loop.py`): unwatched, with the probe as
a script's rank has it, and unwatched with one XADD a step (redis-py, unix socket, a telemetry server with the
product's own configuration). What is added is the difference of CPU time to the unwatched block of the same turn; a
sample is the lower quartile of the turns of one process.

`calls` are steps with nothing in them but the calls that are watched. `linear` is the smallest model that trains; the
narrow CNN and transformer have the modules of real ones and little to compute, so that what is added can be seen.
`linear under ddp` is one rank on gloo. The wall time of the linear step is that of the clock, in the same blocks. The
first steps are not counted.
"""

import json
import subprocess
import sys
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.harness.comparing import Figure, Say, Scale, at_most, times_better
from benchmarks.harness.servers import redis_server

TITLE = "Probe: CPU time of the main thread in a watched step"

PROBE, XADD, UNWATCHED = "probe", "one XADD a step", "unwatched"
DEADLINE_SECONDS = 300.0
TURNS = 20
#: Loop, its name, the modules that are called in a step (the loss is one), steps of a block (full and quick), and
#: processes. A step of the first makes six watched calls: at full scale more than a million in the watched blocks.
LOOPS = (
    ("trivial", "calls", 2, (4300, 500), 2),
    ("linear", "linear", 2, (250, 100), 2),
    ("linear under ddp", "linear under ddp", 3, (200, 60), 2),
    ("narrow cnn", "narrow cnn", 16, (60, 10), 1),
    ("narrow transformer", "narrow transformer", 65, (20, 5), 1),
)
#: Those of quick scale: starting a process for each takes most of the time.
QUICK_LOOPS = LOOPS[:3]
Block = tuple[float, float]  # seconds of a step: CPU time of the main thread, and the clock's


def run(scale: Scale, say: Say) -> list[Figure]:
    figures = []
    with redis_server("telemetry") as server:
        for loop, name, modules, steps, often in scale.pick(LOOPS, QUICK_LOOPS):
            processes = [measure(loop, scale.pick(*steps), server.url) for _ in range(scale.rounds_of(often, 1))]
            say(name)
            added = {
                side: [added_seconds(each, way, 0) for each in processes]
                for side, way in ((PROBE, "on"), (XADD, "xadd"))
            }
            goals = [times_better(XADD, 30), at_most(5e-6)]
            if loop == "trivial":
                figures.append(Figure("CPU time added to bare calls", "s", added, goals))
            else:
                what = "CPU time added to a step"
                figures.append(Figure(what, "s", added, goals, size=modules, size_of="modules called", note=name))
            if loop == "linear":
                figures.append(wall(processes))
    return figures


def measure(loop: str, steps: int, url: str) -> dict[str, list[Block]]:
    """The blocks of each way, of one process."""
    asked = json.dumps({"loop": loop, "blocks": TURNS, "steps": steps, "redis": url})
    command = [sys.executable, "-m", "benchmarks.programs.watched_loop", asked]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_SECONDS, check=True, cwd=Path(__file__).parents[1]
    )
    blocks: dict[str, list[Block]] = json.loads(done.stdout)
    return blocks


def added_seconds(blocks: dict[str, list[Block]], way: str, which: int) -> float:
    """Lower quartile of what a way takes more than the unwatched block of the same turn."""
    turns = zip(blocks[way], blocks["off"], strict=True)
    return quantiles([with_it[which] - without[which] for with_it, without in turns], n=4)[0]


def wall(processes: list[dict[str, list[Block]]]) -> Figure:
    def lower(way: str) -> list[float]:
        return [quantiles([block[1] for block in each[way]], n=4)[0] for each in processes]

    samples: dict[str, Any] = {"watched": lower("on"), UNWATCHED: lower("off"), "with one XADD": lower("xadd")}
    return Figure("time of a linear step", "s", samples)
