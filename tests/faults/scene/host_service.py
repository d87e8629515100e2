"""A service whose nodes are hosts of their own: network namespaces that reach Redis and each other over a bridge."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from jobs.store import AttemptId
from tests.faults.inject.hosts import Hosts, running_hosts
from tests.faults.inject.processes import RANK, SUPERVISOR
from tests.integration.workers.service import MODULE, NODE, WARM_SECONDS, eventually
from tests.integration.workers.two_nodes import TwoNodes
from tests.support.servers.redis_server import RedisServer

PASSWORD = "the-password-of-these-tests"
PORT = 6379
#: Short, since tests wait for all of it; a link may be silent for seven seconds of it.
LEASE_SECONDS = 20.0


class HostService(TwoNodes):
    """Node `n1` is on the first host, and so on. Tests talk to Redis over its unix socket, whatever is cut."""

    def __init__(
        self,
        directory: Path,
        server: RedisServer,
        hosts: Hosts,
        prefixes: Mapping[str, Sequence[str]],
        **settings: float | str,
    ) -> None:
        """`prefixes`: what the command lines of workers begin with, by node."""
        super().__init__(directory, server, **settings)
        self.hosts = hosts
        self._prefixes = prefixes
        self.nodes = tuple(f"n{host}" for host in range(1, hosts.count + 1))
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

    def host(self, node: str) -> int:
        return self.nodes.index(node) + 1

    def gang_of(self, nodes: int, **options: Any) -> str:
        """A job over so many hosts, one device of each; options as in `Service.submit`."""
        return self.submit("ddp", 1, nodes=nodes, **options)

    # -- workers ---------------------------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        url = f"redis://:{PASSWORD}@{self.hosts.bridge}:{PORT}"
        return super()._environment() | {"SHARDYARD_REDIS_URL": url}

    def start_workers(self) -> None:
        """Start a worker on each host that has none, and wait until all have registered."""
        before = {node: record.registered for node, record in self.records().items()}
        missing = [node for node in self.nodes if node not in self.workers or self.workers[node].poll() is not None]
        for node in missing:
            host = self.host(node)
            settings = {"SHARDYARD_NODE": node, "SHARDYARD_NODE_ADDRESS": self.hosts.address(host)}
            command = [*self._prefixes.get(node, ()), *MODULE]
            self.workers[node] = self._spawn(self.hosts.command(host, *command), **settings)
        self.worker = self.workers[NODE]
        eventually(
            lambda: all(
                node in (now := self.records()) and now[node].registered > before.get(node, 0) for node in missing
            ),
            f"{missing} register; {self.worker_log()}",
            WARM_SECONDS,
        )

    def restore_worker(self) -> None:
        self.start_workers()

    # -- processes of a host ---------------------------------------------------------------------------

    def everyone(self, job: str) -> list[int]:
        """The living ranks of a job's newest attempt, on all of its hosts."""
        attempt = self.attempt(job)
        return [pid for place in self.job(job).placement for pid in self.ranks_on(place.node, attempt)]

    def part_of(self, job: str, part: int) -> str:
        """The node of a part of a job's newest attempt."""
        return self.job(job).placement[part].node

    def spare_node(self, job: str) -> str:
        """A node on which a job does not run."""
        used = {place.node for place in self.job(job).placement}
        return next(node for node in self.nodes if node not in used)

    @contextmanager
    def frozen(self, node: str) -> Iterator[None]:
        """Everything on a host stands still while this lasts."""
        stopped = self.hosts.processes(self.host(node))
        for process in stopped:
            process.suspend()
        try:
            yield
        finally:
            for process in stopped:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def training(self, node: str) -> list[str]:
        """Supervisors and ranks that run on a host."""
        found = []
        for process in self.hosts.processes(self.host(node)):
            with suppress(psutil.NoSuchProcess):
                if process.name() == SUPERVISOR or process.name().startswith(RANK):
                    found.append(f"{process.pid} {process.name()}")
        return found

    def held_on(self, node: str, attempt: AttemptId) -> list[int]:
        """The devices of a node that an attempt has."""
        return [device for device, ref in self.records()[node].held.items() if ref == str(attempt)]

    # -- traces ----------------------------------------------------------------------------------------

    def leaves_nothing(self) -> None:
        for node in self.nodes:
            eventually(lambda here=node: not self.training(here), f"nothing of a job is left on {node}")  # type: ignore[misc]
        eventually(
            lambda: all(not node.held for node in self.records().values()), "all devices are free", 3 * LEASE_SECONDS
        )
        super().leaves_nothing()

    def close(self) -> None:
        for worker in self.workers.values():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGCONT)
            worker.kill()
            worker.wait(10)
        super().close()


@contextmanager
def service_over_hosts(
    directory: Path, count: int, prefixes: Mapping[str, Sequence[str]] | None = None, **settings: float | str
) -> Iterator[HostService]:
    """A service with `count` hosts, on each of which a worker with one device runs. `prefixes`: what the command lines
    of workers begin with, by node."""
    directory.mkdir(parents=True, exist_ok=True)
    redis_directory = directory / "redis"
    redis_directory.mkdir()
    chosen: dict[str, Any] = {"devices": "cpu:1", "lease_seconds": LEASE_SECONDS, "join_seconds": 10.0} | settings
    with running_hosts(count) as hosts:
        options = {"port": str(PORT), "bind": hosts.bridge, "requirepass": PASSWORD}
        server = RedisServer(redis_directory, appendonly="yes", appendfsync="always", **options)
        server.prefix = hosts.command_at_bridge()
        try:
            server.start()
            service = HostService(directory, server, hosts, prefixes or {}, **chosen)
            try:
                service.start_workers()
                yield service
            finally:
                service.close()
        finally:
            server.close()
