"""Run benchmarks: `python -m benchmarks [NAME ...]`, each in a process of its own.

python -m benchmarks --list          what there is
python -m benchmarks start --rounds 9
python -m benchmarks --quick         all of them, two at a time, with few rounds and without Ray
python -m benchmarks                 all of them, one after the other
python -m benchmarks --table         draw the pictures and write the tables anew from the files in results/
"""

import argparse
import importlib
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from benchmarks.harness import peers, results
from benchmarks.harness.comparing import Scale
from benchmarks.harness.results import DIRECTORY

#: In the order of a job's life. Each module has TITLE and `run(scale, say)`, which returns its figures.
NAMES: tuple[str, ...] = (
    "submit",
    "start",
    "status",
    "logs",
    "event_stream",
    "ends",
    "exits",
    "hosts",
    "many_ranks",
    "neighbours",
    "greedy_tenant",
    "short_jobs",
    "comparisons",
    "training",
    "probe",
    "primitives",
    "unlike_devices",
    "listing",
    "memory",
    "dispatching",
    "idle",
)
#: Run only by name: what needs a machine of its own, or is the same on all.
ON_REQUEST = ("gpu", "bucket", "brought", "fair_share", "start_estimates", "slurm_starts")
#: The packages of those that have one.
PACKAGES = {
    **dict.fromkeys(("dispatching", "fair_share", "start_estimates"), "pools"),
    "slurm_starts": "engines",
    "unlike_devices": "devices",
    **dict.fromkeys(("bucket", "brought"), "storage"),
    "comparisons": "groups",
}
PROJECT_README = Path(__file__).parents[1] / "README.md"
DEADLINE_SECONDS = 600.0
#: How many run beside each other in a quick run: most of what one takes then is waiting for its service.
QUICK_AT_ONCE = 2


def import_benchmark(name: str) -> ModuleType:
    return importlib.import_module(".".join(("benchmarks", *PACKAGES.get(name, "").split(), name)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Side-by-side measurements; README.md has the method."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which; default all (--list)")
    parser.add_argument("--quick", action="store_true", help="few rounds and small sizes, two at a time: rough figures")
    parser.add_argument("--rounds", type=int, help="of each side, in place of what the benchmark has")
    parser.add_argument(
        "--into", type=Path, default=DIRECTORY, help="directory for results; default benchmarks/results"
    )
    parser.add_argument("--list", action="store_true", help="names and titles, and nothing is run")
    parser.add_argument(
        "--table", action="store_true", help="nothing is run: pictures and tables of the results there are"
    )
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.names) - {*NAMES, *ON_REQUEST}
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join((*NAMES, *ON_REQUEST))}")
    if chosen.rounds is not None and chosen.rounds < 1:
        parser.error("--rounds must be at least 1")
    if chosen.list:
        for name in (*NAMES, *ON_REQUEST):
            print(f"{name:<14} {import_benchmark(name).TITLE}")
        return 0
    if chosen.table:
        _show(chosen.into)
        return 0
    names = chosen.names or NAMES
    if len(names) == 1:
        return _one(names[0], Scale(chosen.quick, chosen.rounds), chosen.into)
    peers.install()  # once, and not in the time of a benchmark
    with ThreadPoolExecutor(QUICK_AT_ONCE if chosen.quick else 1) as pool:
        done = dict(zip(names, pool.map(lambda name: _child(name, chosen), names), strict=True))
    _show(chosen.into, draw=not chosen.quick)
    if failed := [name for name in names if not done[name]]:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _one(name: str, scale: Scale, into: Path) -> int:
    module = import_benchmark(name)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what a benchmark has started is ended as after any error
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{name:<14} {time.monotonic() - began:6.1f} s  {text}", flush=True)

    figures = module.run(scale, say)
    if scale.quick:
        figures = [replace(each, goals=()) for each in figures]  # too rough to be judged
    path = results.write(name, module.TITLE, figures, quick=scale.quick, seconds=time.monotonic() - began, into=into)
    print("\n".join(results.table(figures)))
    say(f"written to {path}")
    return 0


def _child(name: str, chosen: argparse.Namespace) -> bool:
    """One benchmark in a process of its own: no thread and no memory of one is in the way of the next."""
    command = [sys.executable, "-m", "benchmarks", name, "--into", str(chosen.into)]
    command += ["--quick"] if chosen.quick else []
    command += ["--rounds", str(chosen.rounds)] if chosen.rounds else []
    try:
        return subprocess.run(command, timeout=DEADLINE_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"{name}: not done within {DEADLINE_SECONDS:g} s", file=sys.stderr)
        return False


def _show(directory: Path, *, draw: bool = True) -> None:
    if draw:
        results.pictures(directory)
    (directory / "README.md").write_text(results.summary(directory))
    if directory == DIRECTORY:
        PROJECT_README.write_text(results.insert(PROJECT_README.read_text(), results.headlines(directory)))


if __name__ == "__main__":
    raise SystemExit(main())
