"""Every process of `shardyard up` is killed in turn while data-parallel jobs train, and comes back by itself; all but
`up`, which is started again."""

import os
import random
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import redis

from jobs import store
from jobs.files import paths
from jobs.model.state import StateReason
from jobs.protocol.names import DEFAULT_TENANT
from jobs.store.client import RedisStore
from shardyard.cli import demo
from shardyard.client.connection import local_service
from shardyard.service import embedded_redis
from tests.acceptance.harness import SERVICES, Up
from tests.faults.inject import processes
from tests.faults.scene.checker import Evidence, essence, violations
from tests.faults.scene.recorder import Caller
from tests.integration.workers.service import eventually

pytestmark = [pytest.mark.acceptance, pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS, EVERY = 120, 10
ENDED = ("succeeded", "failed", "cancelled")
#: What a kill of this part may cost an attempt.
LOSSES = {"supervisor": StateReason.SUPERVISOR_LOST, "forkserver": StateReason.START_FAILED}


def spec(strategy: str, steps: int = STEPS) -> dict[str, Any]:
    """A run of a few seconds that saves."""
    found = demo.load_example("digits-dp3" if strategy == "dp" else "digits-ddp2")
    slow = {"device": 1} if strategy == "dp" else {"rank": 1}
    program = found["program"] | {
        "checkpoint": {"every_steps": EVERY},
        "straggler": slow | {"where": "input", "milliseconds": 40.0},
        "max_steps": steps,
        "epochs": 100,
    }
    program.pop("evaluate", None)
    return found | {"name": strategy, "program": program, "limits": {"max_retries": 2}}


class Tree:
    """A service as `shardyard up` starts it, on a port that stays the same."""

    def __init__(self, directory: Path) -> None:
        self.up = Up(directory, "--devices", "cpu:6")
        url = self.up.start().url
        self.up.options += ("--port", url.rpartition(":")[2])
        service = local_service(directory)
        assert service is not None
        self.caller = Caller(url, service.token_file.read_text().strip())
        server = embedded_redis.prepare_redis("control", directory, embedded_redis.find_server())
        self.control = redis.Redis.from_url(server.url)
        self.redis_directory, self.storage, self.state_dir = server.directory, directory / "storage", directory / "node"

    def submit(self, strategy: str, steps: int = STEPS) -> str:
        return self.caller.submit(spec(strategy, steps), key=uuid.uuid4().hex)

    def job(self, job: str) -> dict[str, Any]:
        return self.caller.job(job)

    def supervisor(self, job: str) -> int:
        """Raises KeyError: there is none now."""
        attempt = f"{DEFAULT_TENANT}.{job}.{self.job(job)['attempt']}"
        return processes.supervisors(self.state_dir)[attempt]

    def essence(self, job: str) -> Any:
        found = RedisStore(self.control).run(store.snapshot(DEFAULT_TENANT, job))
        assert found is not None
        number = int(found.job[b"attempt"])
        return essence(paths.attempt_dir(self.storage, DEFAULT_TENANT, job, number), found.job)

    def kill(self, part: str, job: str) -> None:
        """Kill -9 one process, and have what does not come back by itself started again."""
        if part == "up":
            self.up.kill()
            self.up.start()
            return
        pids: dict[str, Callable[[], int]] = {
            "supervisor": lambda: self.supervisor(job),
            "rank": lambda: processes.ranks_of(self.supervisor(job))[0],
            "forkserver": lambda: processes.forkserver(self.up.pids()["worker"]),
        }
        find = pids.get(part, lambda: self.up.pids()[part])

        def kills() -> bool:
            with suppress(KeyError, ValueError, ProcessLookupError, psutil.NoSuchProcess):  # it is just coming back
                os.kill(find(), signal.SIGKILL)
                return True
            return False

        eventually(kills, f"there is a {part} to kill", 60)

    def close(self) -> None:
        self.caller.close()
        self.control.close()
        self.up.close()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    tree = Tree(tmp_path_factory.mktemp("tree"))
    yield tree
    tree.close()


@pytest.fixture(scope="module")
def undisturbed(tree: Tree) -> dict[str, Any]:
    jobs = {strategy: tree.submit(strategy) for strategy in ("dp", "ddp")}
    for job in jobs.values():
        eventually(partial(has_ended, tree, job), f"the end of {job}", 90)
    return {strategy: tree.essence(job) for strategy, job in jobs.items()}


def has_ended(tree: Tree, job: str) -> bool:
    return tree.job(job)["state"] in ENDED


def saved(tree: Tree, job: str, step: int) -> bool:
    found = tree.job(job)["checkpoint"]
    return found is not None and found["step"] >= step


@pytest.mark.parametrize("part", [*SERVICES, "forkserver", "supervisor", "rank", "up"])
def test_whatever_process_is_killed_jobs_end_as_if_nothing_had_been(
    tree: Tree, undisturbed: dict[str, Any], part: str
) -> None:
    chance = random.Random(part)
    jobs = [tree.submit("dp"), tree.submit("ddp")]
    for job in jobs:
        eventually(partial(saved, tree, job, chance.randrange(EVERY, STEPS // 2, EVERY)), "a checkpoint", 60)
        tree.kill(part, job)
    for job in jobs:
        eventually(partial(has_ended, tree, job), f"the end of {job}", 120)
        shown = tree.job(job)
        assert shown["state"] == "succeeded", shown
        assert shown["attempt"] == (2 if part in ("supervisor", "rank") else 1)
    after = tree.submit("ddp")
    eventually(partial(has_ended, tree, after), f"the end of {after}", 120)
    evidence = Evidence(
        client=tree.control,
        redis_directory=tree.redis_directory,
        storage=tree.storage,
        state_dir=tree.state_dir,
        exchanges=tuple(tree.caller.exchanges),
        losses=frozenset(LOSSES.values()),
        baselines=undisturbed,
    )
    found: list[str] = []

    def is_sound() -> bool:
        found[:] = violations(evidence)
        return not found

    with suppress(AssertionError):
        eventually(is_sound, "no violation")
    assert found == []


def test_nothing_is_left_when_it_is_stopped(tree: Tree) -> None:
    mine = {pid for pid in psutil.pids() if _is_of(pid, tree.up.data_dir)}
    assert tree.up.stop() == 0
    assert [pid for pid in mine if psutil.pid_exists(pid) and _is_of(pid, tree.up.data_dir)] == []
    assert msgspec.json.encode(tree.up.pids()) == b"{}"


def _is_of(pid: int, directory: Path) -> bool:
    try:
        return any(link.readlink().is_relative_to(directory) for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
