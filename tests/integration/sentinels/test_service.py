"""The whole service on a Redis that Sentinels watch, with two API processes behind one address: a job goes on, and its
reader with it, while an API process and the primary are killed."""

import os
import subprocess
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from jobs import store
from jobs.store.acl import RedisRole
from jobs.store.client import RedisStore
from shardyard.client import Client, events
from tests.integration.api.conftest import ADMIN
from tests.integration.api.system.test_process import api_process
from tests.integration.workers.service import MODULE, PATIENCE_SECONDS, WARM_SECONDS, eventually
from tests.support.servers.balancer import balanced
from tests.support.servers.sentinel_group import SentinelGroup

pytestmark = [pytest.mark.integration, pytest.mark.slow]

#: Prints numbered lines until a file is there.
SCRIPT = """\
import pathlib, sys, time
for n in range(20_000):
    print("line", n, flush=True)
    if pathlib.Path(sys.argv[1]).exists():
        break
    time.sleep(0.02)
print("done", flush=True)
"""


def settings_of(group: SentinelGroup, role: RedisRole, directory: Path) -> dict[str, str]:
    return {
        "SHARDYARD_REDIS_URL": group.url_of(role),
        "SHARDYARD_SUPERVISOR_REDIS_URL": group.url_of(RedisRole.SUPERVISOR),
        "SHARDYARD_SUPERVISOR_TELEMETRY_URL": group.url_of(RedisRole.SUPERVISOR),
        "SHARDYARD_STORAGE": str(directory / "storage"),
        "SHARDYARD_STATE_DIR": str(directory / "state"),
        "SHARDYARD_NODE": "n1",
        "SHARDYARD_DEVICES": "cpu:2",
        "SHARDYARD_BOX": "off",
        "SHARDYARD_JOBS_UNBOXED": "1",
        "SHARDYARD_RESERVE_BYTES": str(64 << 20),
        "SHARDYARD_BEAT_SECONDS": "0.5",
        "SHARDYARD_RECONCILE_SECONDS": "0.5",
    }


@contextmanager
def worker_process(group: SentinelGroup, directory: Path) -> Iterator[None]:
    """A worker whose node has registered."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SHARDYARD_")}
    with (directory / "worker.log").open("ab") as log:
        process = subprocess.Popen(
            MODULE, env=inherited | settings_of(group, RedisRole.WORKER, directory), stdout=log, stderr=log
        )
    control = RedisStore.from_url(group.url)
    try:
        eventually(lambda: control.run(store.read_fleet()).nodes, "the node registers", WARM_SECONDS)
        yield
    finally:
        control.close()
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def test_a_job_and_its_reader_go_on_when_an_api_and_the_primary_are_killed(
    group: SentinelGroup, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        shared = {
            "BOX": "off",
            "JOBS_UNBOXED": "1",
            "RESERVE_BYTES": str(64 << 20),
            "STORAGE": str(tmp_path / "storage"),
        }
        apis = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            apis.append(stack.enter_context(api_process(tmp_path / name, group.url_of(RedisRole.API), **shared)))
        ports = [api.port() for api in apis]
        stack.enter_context(worker_process(group, tmp_path))
        address = f"http://127.0.0.1:{stack.enter_context(balanced(ports))}"
        client = stack.enter_context(Client(address, ADMIN))
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "train.py").write_text(SCRIPT)
        enough = tmp_path / "enough"
        job = client.submit_script(tmp_path / "code" / "train.py", [str(enough)])

        lines: list[str] = []
        states: list[str] = []

        def read() -> None:
            with Client(address, ADMIN) as reading:
                for event in reading.job(job.id).follow(logs="all"):
                    if isinstance(event, events.LogLines):
                        lines.extend(line.text for line in event.lines if line.stream == "stdout")
                    elif isinstance(event, events.StateChanged):
                        states.append(event.state)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()

        def await_lines() -> None:
            wanted = len(lines) + 20
            eventually(
                lambda: len(lines) > wanted, f"more lines are read; {client.job(job.id).status}", PATIENCE_SECONDS
            )

        await_lines()
        apis[0].child.kill()
        await_lines()
        keys = [uuid.uuid4().hex for _ in range(5)]
        spec = dict(client.job(job.id).status.spec)
        spec["program"] = spec["program"] | {"args": ["/"]}
        first = [client.submit(spec, key=key).id for key in keys]

        killed = group.kill_primary()
        group.await_other_primary(killed)
        await_lines()
        assert [client.submit(spec, key=key).id for key in keys] == first  # the same jobs, from the other server
        enough.touch()
        assert client.job(job.id).wait(2 * PATIENCE_SECONDS).status.state == "succeeded"
        reader.join(PATIENCE_SECONDS)
        assert not reader.is_alive()

        assert client.job(job.id).status.attempt == 1  # no attempt was lost
        assert lines == [*(f"line {n}" for n in range(len(lines) - 1)), "done"]
        assert states[-1] == "succeeded"
        for other in first:
            assert client.job(other).wait(2 * PATIENCE_SECONDS).status.state == "succeeded"
