"""The worker's options for SIGTERM: how it ends, and how long that may take. The worker and its monitor have the same
options."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

#: Longest time that a drain may be given, in seconds.
MAX_DRAIN_SECONDS = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class ShutdownOptions:
    """By default a worker ends at once, and its attempts continue."""

    stop_attempts: bool = False  # they are ended first, and their jobs go back to the queue
    drain: bool = False  # they are waited for
    drain_seconds: float | None = None  # so long; then they move to other nodes. None: for as long as it takes
    in_block: bool = False  # SIGUSR2 is SIGTERM, and a repeat changes nothing: engines send both, and more than once
    idle_exit: float | None = None  # it leaves after so many seconds without an attempt
    lifetime: float | None = None  # it drains after so many seconds


def parse_options(arguments: Sequence[str] | None = None) -> ShutdownOptions:
    """The options of `python -m workers`. Leaves with exit code 2 where they are wrong."""
    parser = argparse.ArgumentParser(prog="python -m workers", description="Run one node's worker; see SHARDYARD_*.")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--stop-attempts-on-exit",
        action="store_true",
        help="on SIGTERM, end this node's attempts first; their jobs go back to the queue",
    )
    how.add_argument(
        "--drain",
        nargs="?",
        type=_parse_seconds,
        const=-1.0,
        metavar="SECONDS",
        help="on SIGTERM, take no new work and wait for this node's attempts; those that still run after SECONDS save "
        "a checkpoint and move to other nodes. A second SIGTERM ends the worker at once, and they continue",
    )
    parser.add_argument(
        "--in-block",
        action="store_true",
        help="the node is there for a time (SHARDYARD_BLOCK): SIGUSR2 means SIGTERM, and a repeat changes nothing",
    )
    parser.add_argument("--idle-exit", type=_parse_seconds, metavar="SECONDS", help="leave after so long without work")
    parser.add_argument("--lifetime", type=_parse_seconds, metavar="SECONDS", help="drain after so long")
    found = parser.parse_args(arguments)
    given = found.drain is not None
    drain_seconds = found.drain if given and found.drain >= 0 else None
    if found.in_block and not given:
        given, drain_seconds = True, 0.0
    return ShutdownOptions(
        found.stop_attempts_on_exit, given, drain_seconds, found.in_block, found.idle_exit, found.lifetime
    )


def _parse_seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= MAX_DRAIN_SECONDS:
        raise argparse.ArgumentTypeError(f"{text}: must be between 0 and {MAX_DRAIN_SECONDS:.0f} seconds")
    return seconds
