"""A rank that does nothing, says when it ends, and ends.

Arguments: where the moment goes, in seconds since the epoch: a directory, for a file `<rank>`, or `-` for a line of
output; and how it ends: `return` from the program, `exit` at once with code 0, or `fail`, where the last rank exits
with code 3 while the others go on for a minute.
"""

import os
import sys
import time
from pathlib import Path


def main(place: str, how: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    time.sleep(0.2)  # all of them are up by now
    if how == "fail" and rank != world - 1:
        time.sleep(60)
    if place == "-":
        print(time.time(), flush=True)
    else:
        (Path(place) / str(rank)).write_text(repr(time.time()))
    if how != "return":
        os._exit(3 if how == "fail" else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
