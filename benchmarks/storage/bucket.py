"""A service whose files are in a bucket, beside one that has them in a directory.

Both are `shardyard up` on this machine, and so is the S3 server, SeaweedFS in one process: it takes cores and a disk
where a store of its own machine would take none, so what is slower here is so by more than the network explains. Jobs
run on one service after the other, in turns; `loads.py` says what they do.
"""

from contextlib import ExitStack

from benchmarks.harness.comparing import Figure, Say, Scale
from benchmarks.harness.s3 import s3_server
from benchmarks.harness.service import environment, service
from benchmarks.storage.loads import DIRECTORY, Side, measure_sides

TITLE = "Files in a bucket beside files in a directory"
BUCKET = "bucket"


def run(scale: Scale, say: Say) -> list[Figure]:
    with ExitStack() as stack:
        variables = stack.enter_context(s3_server())
        with environment(variables):
            in_bucket = stack.enter_context(service("cpu:2"))
        with environment({"SHARDYARD_STORAGE": ""}):
            in_directory = stack.enter_context(service("cpu:2"))
        return measure_sides(scale, say, {BUCKET: Side(in_bucket), DIRECTORY: Side(in_directory)})
