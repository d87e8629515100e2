"""A service with two nodes on this machine, each with a worker, devices and an address of its own."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from jobs import store
from jobs.model.records import NodeRecord
from jobs.store import AttemptId
from tests.integration.workers.service import MODULE, NODE, WARM_SECONDS, Service, eventually, is_dead
from tests.support.servers.redis_server import redis_server
from workers.runtime.launch import AttemptDirectory

OTHER = "n2"
NODES = (NODE, OTHER)
ADDRESSES = {NODE: "127.0.0.1", OTHER: "127.0.0.2"}
#: Short, since tests wait for some part of it.
LEASE_SECONDS = 20.0


class TwoNodes(Service):
    """`Service` has the first node; what follows is about all."""

    nodes: tuple[str, ...] = NODES
    other_worker: subprocess.Popen[bytes]

    def records(self) -> dict[str, NodeRecord]:
        return {node.id: node for node in self.run(store.read_fleet()).nodes}

    def gang(self, strategy: str = "ddp", devices: int = 2, **options: Any) -> str:
        """A job over two nodes; options as in `Service.submit`."""
        return self.submit(strategy, devices, nodes=2, **options)

    def long_gang(self, **options: Any) -> str:
        return self.long("ddp", 2, nodes=2, **options)

    def node_of_leader(self, job: str) -> str:
        return self.job(job).placement[0].node

    def node_of_follower(self, job: str) -> str:
        return self.job(job).placement[1].node

    def marks_on(self, node: str, attempt: AttemptId) -> AttemptDirectory:
        return AttemptDirectory.of(self.directory / "state" / node, attempt)

    def supervisor_on(self, node: str, attempt: AttemptId) -> int:
        return int(self.marks_on(node, attempt).session.read_text().split()[0])

    def ranks_on(self, node: str, attempt: AttemptId) -> list[int]:
        leader = self.supervisor_on(node, attempt)
        return [pid for pid in self.living() if os.getsid(pid) == leader and pid != leader]

    def held_by(self, job: str) -> list[int]:
        return [device for node in self.records().values() for device, ref in node.held.items() if job in ref]

    def leaves_nothing(self) -> None:
        super().leaves_nothing()
        assert {node.id: (node.held, node.quarantine) for node in self.records().values()} == dict.fromkeys(
            self.nodes, ({}, {})
        )
        for node in self.nodes:
            directories = self.directory / "state" / node / "attempts"
            eventually(lambda here=directories: not list(here.glob("*")), f"no directory is left in {directories}")  # type: ignore[misc]


def end_process(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)
    if number == signal.SIGKILL:
        eventually(lambda: is_dead(pid), f"process {pid} is gone")


@contextmanager
def two_nodes(directory: Path, **settings: float | str) -> Iterator[TwoNodes]:
    directory.mkdir(parents=True, exist_ok=True)
    chosen: dict[str, Any] = {"devices": "cpu:2", "lease_seconds": LEASE_SECONDS, "join_seconds": 10.0} | settings
    with ExitStack() as stack:
        server = stack.enter_context(redis_server(directory / "redis", appendonly="yes", appendfsync="always"))
        service = TwoNodes(directory, server, **chosen)
        stack.callback(service.close)
        service.start_worker()
        settings_of_other = {"SHARDYARD_NODE": OTHER, "SHARDYARD_NODE_ADDRESS": ADDRESSES[OTHER]}
        service.other_worker = stack.enter_context(service.another_worker(MODULE, **settings_of_other))
        eventually(lambda: set(service.records()) == set(NODES), "both nodes register", WARM_SECONDS)
        yield service
