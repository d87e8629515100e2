"""A service whose nodes come from a real Slurm: Redis, a dispatcher, a provider, and whatever blocks that asks for."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from api.schemas import views
from api.schemas.fleet_facts import FleetFacts
from jobs import store
from jobs.files.identity import prove_storage
from jobs.model.records import AttemptRecord
from jobs.model.state import JobState
from jobs.scheduling.scheduler import JobScheduler
from jobs.store import AttemptId
from jobs.store.pools import read_demand
from shardyard.contract.responses import ReasonView
from tests.faults.scene.host_service import PASSWORD, PORT
from tests.integration.store.invariants import violations
from tests.integration.workers.service import TENANT, Service, eventually
from tests.support.servers.redis_server import RedisServer
from tests.support.servers.slurm_cluster import SlurmCluster, slurm_cluster

POOL = "slurm"
PROVIDER = [sys.executable, "-m", "workers.provider.main"]
#: A block waits for Slurm, and its workers import torch: seconds, or minutes on a busy machine.
BLOCK_SECONDS = 240.0
IDLE_SECONDS = 4.0
ENDED = {"CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "PREEMPTED", "TIMEOUT"}


class SlurmService(Service):
    """Jobs go to the pool that Slurm supplies."""

    def __init__(self, directory: Path, server: RedisServer, cluster: SlurmCluster, **settings: float | str) -> None:
        super().__init__(directory, server, pool=POOL, **settings)
        self.cluster = cluster
        self.provider: subprocess.Popen[bytes] | None = None
        self._dispatcher = JobScheduler(self.store, self._courier, self.settings, listen=True)
        self._pools = directory / "pools.toml"
        (directory / "blocks").mkdir()
        self.settings.storage.mkdir(parents=True)
        prove_storage(self.store, self.settings.storage)  # as the API does when it begins
        self._dispatcher.start()

    # -- the provider ------------------------------------------------------------------------------------

    def write_pools(self, **fields: Any) -> None:
        """The pools file, with one pool. Fields are those of a pool, and `most` and `least` nodes."""
        most, least = fields.pop("most", self.cluster.hosts.count), fields.pop("least", 0)
        chosen = {
            "engine": "slurm",
            "partition": "main",
            "devices": "cpu:1",
            "idle_seconds": IDLE_SECONDS,
            "cpus": 2,  # all of a node, so that each block has hosts of its own
            "output": str(self.directory / "blocks" / "%j.out"),
        } | fields
        lines = [
            f"{name} = {str(value) if isinstance(value, int | float) else repr(value)}"
            for name, value in chosen.items()
        ]
        nodes = f"nodes = {{min = {least}, max = {most}}}"
        self._pools.write_text("\n".join([f"[pools.{POOL}]", *lines, nodes, ""]).replace("'", '"'))

    def start_provider(self, **environment: str) -> None:
        command = self.cluster.hosts.command_at_bridge(*PROVIDER, "--pools", str(self._pools))
        with (self.directory / "worker.log").open("ab") as log:
            variables = self._environment() | dict(self.cluster.environment) | environment
            self.provider = subprocess.Popen(command, env=variables, stdout=log, stderr=log)

    def kill_provider(self) -> None:
        assert self.provider is not None
        self.provider.kill()
        self.provider.wait(10)

    def restart_provider(self, **fields: Any) -> None:
        """Another provider, whose pool has these fields."""
        self.kill_provider()
        self.write_pools(**fields)
        self.start_provider()

    def _environment(self) -> dict[str, str]:
        url = f"redis://:{PASSWORD}@{self.cluster.hosts.bridge}:{PORT}"
        chosen = super()._environment() | {"SHARDYARD_REDIS_URL": url}
        return {name: value for name, value in chosen.items() if name not in ("SHARDYARD_NODE", "SHARDYARD_POOL")}

    # -- jobs --------------------------------------------------------------------------------------------

    def spec(self, *arguments: Any, **options: Any) -> Any:
        return super().spec(*arguments, **options).model_copy(update={"pool": POOL})

    def dispatch_jobs(self) -> None:
        """The dispatcher does so by itself."""

    def await_pool(self) -> None:
        eventually(lambda: self.run(store.read_fleet()).provided, f"the pool is kept; {self.worker_log()}")

    def reason(self, job: str) -> ReasonView:
        """Why a job is in its state, as its status says."""
        view = self.run(store.read_job(TENANT, job))
        return views.reason_view(view.record, view.queue, FleetFacts.from_records(self.run(store.read_fleet())))

    def succeeds(self, job: str, seconds: float = BLOCK_SECONDS) -> tuple[AttemptRecord, ...]:
        """The attempts of a job, which succeeds."""
        record = self.finished(job, seconds)
        assert record.state is JobState.SUCCEEDED, (record, self.reason(job), self.block_output())
        return self.attempts(job)

    def held_by(self, job: str) -> list[int]:
        nodes = self.run(store.read_fleet()).nodes
        return [device for node in nodes for device, ref in node.held.items() if job in ref]

    # -- blocks ------------------------------------------------------------------------------------------

    def nodes(self) -> dict[str, str]:
        """The block of each node that is up."""
        return {node.id: node.block for node in self.run(store.read_fleet()).nodes if node.alive}

    def block_of(self, job: str) -> str:
        return self.nodes()[self.job(job).placement[0].node]

    def host_of(self, job: str) -> str:
        return self.job(job).placement[0].node.partition("-")[0]

    def block_output(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted((self.directory / "blocks").glob("*.out")))

    def kill_host(self, host: str) -> None:
        """Kill all processes on a host but Slurm's own daemons, as by a memory that is full."""
        for process in self.cluster.hosts.processes(int(host.removeprefix("sy"))):
            with suppress(psutil.NoSuchProcess):
                if process.name() not in ("slurmd", "slurmstepd"):
                    process.kill()

    def processes(self) -> list[str]:
        """What runs on the hosts beside Slurm's own daemons."""
        found = []
        for host in range(1, self.cluster.hosts.count + 1):
            for process in self.cluster.hosts.processes(host):
                try:
                    if process.name() not in ("slurmd", "slurmstepd"):
                        found.append(f"sy{host}: {process.pid} {process.name()} {process.status()}")
                except psutil.NoSuchProcess:
                    continue
        return found

    def leaves_nothing(self) -> None:
        """Wait until all blocks have ended by themselves, and check that nothing is left of them, anywhere."""
        eventually(
            lambda: set(self.cluster.jobs().values()) <= ENDED, f"all blocks end: {self.cluster.jobs()}", BLOCK_SECONDS
        )
        eventually(lambda: not self.run(store.read_fleet()).nodes, "all nodes are forgotten", BLOCK_SECONDS)
        eventually(lambda: not self.run(read_demand(POOL)).blocks, "no block is noted any more", BLOCK_SECONDS)
        eventually(lambda: not self.processes(), "no process is left on the hosts")
        assert violations(self.store.client) == []
        for path in self.notes.iterdir():
            path.unlink()

    def clear(self) -> None:
        """End what a failed test has left, so that the next one finds an empty cluster."""
        for record in self.run(store.list_jobs(TENANT, store.JobFilter())).jobs:
            if record.finished is None:
                self.run(store.cancel(TENANT, record.id))
        self.cluster.run("scancel", "--user=root")

    def close(self) -> None:
        if self.provider is not None:
            self.kill_provider()
        self._dispatcher.stop()
        self.store.close()

    def attempt_of(self, job: str, number: int) -> AttemptId:
        return AttemptId(TENANT, job, number)


@contextmanager
def slurm_service(
    directory: Path, hosts: int, pool: Mapping[str, Any] | None = None, **settings: Any
) -> Iterator[SlurmService]:
    """A service with a provider, and a Slurm of so many hosts. `pool`: fields of the pool."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "redis").mkdir()
    chosen: dict[str, Any] = {
        "lease_seconds": 60.0,
        "join_seconds": 20.0,
        "engine_seconds": 2.0,
        "checkpoint_seconds": 10.0,
    }
    with ExitStack() as stack:
        cluster = stack.enter_context(slurm_cluster(directory, hosts))
        options = {"port": str(PORT), "bind": cluster.hosts.bridge, "requirepass": PASSWORD}
        server = RedisServer(directory / "redis", appendonly="yes", appendfsync="always", **options)
        server.prefix = cluster.hosts.command_at_bridge()
        stack.callback(server.close)
        server.start()
        service = SlurmService(directory, server, cluster, **chosen | settings)
        stack.callback(service.close)
        service.write_pools(**pool or {})
        service.start_provider()
        service.await_pool()
        yield service
