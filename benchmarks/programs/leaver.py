"""A script that leaves something: `leaver.py LINES MEGABYTES FILES`. It prints lines, saves a checkpoint of so many
megabytes, writes so many small files, and says when it was done."""

import os
import sys
import time
from itertools import islice
from pathlib import Path

try:
    from benchmarks.programs import training_output
except ImportError:  # in a job, this directory is all there is
    import training_output  # type: ignore[import-not-found, no-redef]

#: What the last line begins with, and the one before a checkpoint; the time of the clock follows.
MARK, SAVES = "left at", "saves at"
MEGABYTE = 1024 * 1024


def main(lines: int, megabytes: int, files: int) -> None:
    sys.stdout.writelines(f"{line}\n" for line in islice(training_output.lines(0), lines))
    if megabytes:
        from shardyard import job

        with open("state.bin", "wb") as state:
            for _ in range(megabytes):
                state.write(os.urandom(MEGABYTE))
        print(SAVES, time.time(), flush=True)
        job.checkpoint("state.bin")
    output = Path(os.environ["SHARDYARD_OUTPUT_DIR"])
    for number in range(files):
        (output / f"file-{number}.txt").write_text(f"{number}\n")
    print(MARK, time.time(), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
