"""Which hints start a supervisor, and as what: with a real control Redis, and no process behind the forkserver."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jobs import store
from jobs.files import identity
from jobs.model.settings import Settings
from jobs.model.state import JobState
from jobs.model.trace_context import JobTrace
from jobs.store import AttemptId
from tests.integration.store.world import TENANT, World, a_spec
from tests.support.servers.redis_server import running_redis
from workers.carrier.access import RemoteAccess
from workers.node.config import NodeConfig
from workers.node.devices import discover_devices
from workers.node.forkserver import ForkServer
from workers.node.held_attempts import HeldAttempts
from workers.node.launcher import AttemptLauncher
from workers.runtime.launch import AttemptConfig

pytestmark = pytest.mark.integration


class NotedStarts(ForkServer):
    """Notes what it would start."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[AttemptConfig] = []

    def start_supervisor(
        self,
        config: AttemptConfig,
        control_url: str,
        telemetry_url: str,
        secrets: Mapping[str, str] | None = None,
        storage: RemoteAccess | None = None,
    ) -> int:
        self.started.append(config)
        return 1


@dataclass
class Nodes:
    """Launchers of the nodes n1 and so on, each with two devices."""

    world: World
    url: str
    directory: Path
    starts: dict[str, NotedStarts] = field(default_factory=dict)

    def launcher(self, node: str, devices: str) -> AttemptLauncher:
        settings = Settings(
            redis_url=self.url,
            node=node,
            node_address=f"10.0.0.{node[1:]}",
            storage=self.directory / "storage",
            state_dir=self.directory / "state",
            join_seconds=7,
        )
        config = NodeConfig(settings, discover_devices(devices))
        return AttemptLauncher(config, self.world.store, self.starts.setdefault(node, NotedStarts()), HeldAttempts())

    def send_hint(self, node: str, attempt: AttemptId, devices: str = "cpu:2") -> None:
        self.launcher(node, devices).start_attempt(attempt)

    def started(self) -> list[tuple[str, int]]:
        """Nodes on which supervisors were started, with the number of the attempt."""
        return [(node, config.attempt.number) for node, found in self.starts.items() for config in found.started]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_redis(tmp_path_factory.mktemp("launcher")) as url:
        yield url


@pytest.fixture
def nodes(url: str, tmp_path: Path) -> Iterator[Nodes]:
    world = World(url)
    world.redis.flushall()
    identity.prove_storage(world.store, tmp_path / "storage")
    for node in ("n1", "n2", "n3"):
        world.node(node, 2)
    yield Nodes(world, url, tmp_path)
    world.store.close()


def start_gang(world: World) -> AttemptId:
    """Of a job of one device on each of two nodes. One of these has a device that is taken, so that the parts have
    devices of different indexes."""
    world.running(1)
    job = world.submit(1, nodes=2)
    assert world.dispatch() == [job]
    return world.attempt(job)


def test_every_node_of_an_attempt_starts_its_own_part(nodes: Nodes) -> None:
    attempt = start_gang(nodes.world)
    placement = nodes.world.job(attempt.job).placement
    in_order = tuple(place.node for place in placement)
    assert [place.devices for place in placement] == [(1,), (0,)]
    for part, place in enumerate(placement):
        nodes.send_hint(place.node, attempt)
        (config,) = nodes.starts[place.node].started
        assert (config.node, config.part, config.parts, config.join_seconds) == (place.node, part, in_order, 7)
        assert tuple(device.index for device in config.devices) == place.devices
        assert config.address == f"10.0.0.{place.node[1:]}"


def test_the_span_of_a_job_goes_to_its_ranks(nodes: Nodes) -> None:
    span = JobTrace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    job = nodes.world.run(store.submit(TENANT, "traced", a_spec(), trace=span)).job
    assert nodes.world.dispatch() == [job]
    nodes.send_hint("n1", nodes.world.attempt(job))
    (config,) = nodes.starts["n1"].started
    assert config.traceparent == span.traceparent


def test_an_attempt_on_one_node_has_no_parts(nodes: Nodes) -> None:
    job = nodes.world.submit(2)
    assert nodes.world.dispatch() == [job]
    nodes.send_hint("n1", nodes.world.attempt(job))
    (config,) = nodes.starts["n1"].started
    assert (config.part, config.parts) == (0, ())


def test_a_hint_that_is_wrong_or_late_starts_nothing(nodes: Nodes) -> None:
    world, attempt = nodes.world, start_gang(nodes.world)
    leader, follower = (place.node for place in world.job(attempt.job).placement)
    (elsewhere,) = {"n1", "n2", "n3"} - {leader, follower}
    wrong = (AttemptId(TENANT, attempt.job, 2), AttemptId(TENANT, "none", 1))
    for node, hinted in ((elsewhere, attempt), *((follower, one) for one in wrong)):
        nodes.send_hint(node, hinted)
    assert world.run(store.claim(attempt, "c", leader)).granted
    assert world.run(store.abandon(attempt, "c", follower, "it has not joined"))
    for node in (leader, follower):
        nodes.send_hint(node, attempt)  # of an attempt that has ended
    assert world.release(attempt, node=leader) == 1
    assert world.dispatch() == [attempt.job]
    for node in (leader, follower, elsewhere):
        nodes.send_hint(node, attempt)  # of one before the newest
    assert nodes.started() == []
    assert world.state(attempt.job) is JobState.STARTING


def test_a_hint_that_comes_twice_starts_a_supervisor_whose_claim_is_refused(nodes: Nodes) -> None:
    world, attempt = nodes.world, start_gang(nodes.world)
    _, follower = (place.node for place in world.job(attempt.job).placement)
    nodes.send_hint(follower, attempt)
    assert world.run(store.claim(attempt, "first", follower)).granted
    nodes.send_hint(follower, attempt)
    assert nodes.started() == [(follower, 1), (follower, 1)]
    assert not world.run(store.claim(attempt, "second", follower)).granted


def test_a_node_that_lost_the_device_of_its_part_refuses_the_attempt(nodes: Nodes) -> None:
    world, attempt = nodes.world, start_gang(nodes.world)
    leader, _ = (place.node for place in world.job(attempt.job).placement)
    nodes.send_hint(leader, attempt, devices="cpu:1")
    assert nodes.started() == []
    record = world.job(attempt.job)
    assert f"node {leader} no longer has device 1" in record.message
    assert record.state is JobState.QUEUED
