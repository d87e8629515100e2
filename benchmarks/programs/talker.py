"""A script that prints as a busy job does: `talker.py GO_FILE SECONDS`, once the file is there.

Twenty times a second 50 lines, each beginning with the nanosecond at which it was printed, and a point of a metric.
"""

import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

try:
    from benchmarks.programs import training_output
except ImportError:  # in a job, this directory is all there is
    import training_output  # type: ignore[import-not-found, no-redef]

BATCHES_A_SECOND = 20
BATCH_LINES = 50
#: Begins every line, and is nowhere else.
MARK = "@@"
WAIT_SECONDS = 120.0


def batches(seconds: float) -> Iterator[list[str]]:
    """When each is due: lines without their marks."""
    texts = training_output.lines(0)
    for _ in range(int(seconds * BATCHES_A_SECOND)):
        yield list(islice(texts, BATCH_LINES))


def marked(lines: list[str]) -> list[str]:
    now = time.time_ns()
    return [f"{MARK}{now} {line}" for line in lines]


def paced(seconds: float) -> Iterator[list[str]]:
    """Batches, each when it is due, with its marks."""
    began = time.monotonic()
    for number, lines in enumerate(batches(seconds)):
        time.sleep(max(0.0, began + number / BATCHES_A_SECOND - time.monotonic()))
        yield marked(lines)


def main() -> None:
    from shardyard import job

    go, deadline = Path(sys.argv[1]), time.monotonic() + WAIT_SECONDS
    while not go.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{go} did not come")
        time.sleep(0.02)
    for number, lines in enumerate(paced(float(sys.argv[2]))):
        print("\n".join(lines))
        job.log("loss", 1 / (number + 1))


if __name__ == "__main__":
    main()
