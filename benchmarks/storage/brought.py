"""A node that brings its files to the service, beside one on the same service that has its directory.

The service is `shardyard up` on this machine. The second node is a worker beside the first with a state directory of
its own and `SHARDYARD_STORAGE=service`: everything goes to the API by HTTP, over loopback, and is written a second time
to the same disk. Jobs run on one node after the other, in turns; `loads.py` says what they do.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.comparing import Figure, Say, Scale
from benchmarks.harness.service import Service, service
from benchmarks.storage.loads import DIRECTORY, Side, measure_sides

TITLE = "Files that a node brings to the service beside files in its directory"
BROUGHT, POOL, NODE = "brought to the service", "brought", "bringing"
START_SECONDS, END_SECONDS = 60.0, 30.0


def run(scale: Scale, say: Say) -> list[Figure]:
    with service("cpu:2") as running, _bringing_node(running):
        return measure_sides(scale, say, {BROUGHT: Side(running, POOL), DIRECTORY: Side(running)})


@contextmanager
def _bringing_node(of: Service) -> Iterator[None]:
    """A worker with the settings of the service's own but for what makes it another node without its directory.

    Raises:
        RuntimeError: it did not register.
    """
    own = Path(f"/proc/{of.pid_of('worker')}/environ").read_bytes().split(b"\0")
    settings = dict(os.fsdecode(one).split("=", 1) for one in own if b"=" in one)
    state = of.data_dir / NODE
    state.mkdir()
    settings |= {
        "SHARDYARD_NODE": NODE,
        "SHARDYARD_POOL": POOL,
        "SHARDYARD_STATE_DIR": str(state),
        "SHARDYARD_STORAGE": "service",
        "SHARDYARD_URL": of.url,
        "SHARDYARD_NODE_TOKEN": of.client.create_token(NODE, scopes=["node"], node=NODE).token,
    }
    with (state / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "workers", "--stop-attempts-on-exit"], env=settings, stdout=log, stderr=log
        )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not any(node.id == NODE and node.alive for node in of.client.nodes()):
                if worker.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the node did not come: {(state / 'worker.log').read_text()[-2000:]}")
                time.sleep(0.1)
            yield
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(END_SECONDS)
