"""`shardyard up` where jobs have accounts of their own: what one of them can get at of the whole service."""

import io
import json
import zipfile
from collections.abc import Iterator

import pytest

from tests.acceptance.harness import Up, wait_for_state
from tests.integration.workers import reachable
from tests.integration.workers.places import a_place
from tests.integration.workers.sandbox.test_confinement import SCRIPTS

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(bool(reachable.why_not()), reason=reachable.why_not()),
]


class ReachableUp(Up):
    def command(self, *options: str) -> list[str]:
        return reachable.command(*super().command(*options))


@pytest.fixture
def up(monkeypatch: pytest.MonkeyPatch) -> Iterator[Up]:
    monkeypatch.setenv("SHARDYARD_RUN_AS", "20000-20002:20000")
    with a_place() as place:
        up = ReachableUp(place)
        yield up
        up.close()


def packed(script: str) -> io.BytesIO:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w") as archive:
        archive.writestr("train.py", script)
    body.seek(0)
    return body


@pytest.mark.slow
def test_a_hostile_script_gets_at_nothing_of_the_service(up: Up) -> None:
    client = up.start()
    servers = ("control", "telemetry")
    kept = ["", "admin.token", "log", "node", "storage", "worker.lock"]
    kept += [f"{server}/{name}" for server in servers for name in ("", "password", "redis.conf")]
    there = {
        "processes": up.pids(),
        "kept": {path or "the data directory": str(up.data_dir / path) for path in kept},
        "sockets": [str(up.data_dir / server / "r.sock") for server in servers],
    }
    bundle = client.upload_bundle(packed((SCRIPTS / "hostile.txt").read_text()))
    program = {"kind": "script", "bundle": bundle.id, "entrypoint": "train.py", "args": [json.dumps(there)]}
    job = client.submit({"program": program}).id
    assert wait_for_state(client, job, "succeeded", "failed").state == "succeeded"
    got = json.loads([*client.job(job).logs()][-1].text)
    assert {what for what in got if not what.endswith(("of itself", "to itself", "of its output"))} == set()
    assert "environ of itself" in got
