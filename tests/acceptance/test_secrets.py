"""A user stores a secret, runs a job with it, and finds its value nowhere afterwards."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import redis

from shardyard.client import Client
from shardyard.contract.errors import UnknownSecret
from shardyard.service import embedded_redis
from tests.acceptance.harness import Up, wait_for_state
from tests.support.leak_search import read_everything

pytestmark = pytest.mark.acceptance

VALUE = "hf_Zq7wvT4mB2nXk8"
TRAIN = """
import os
print("a marker", len(os.environ["HF_TOKEN"]), os.environ["HF_TOKEN"], flush=True)
raise PermissionError(f"the hub refuses {os.environ['HF_TOKEN']}")
"""


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's directory, which is not in the data directory of `up`."""
    root = tmp_path_factory.mktemp("project")
    (root / "train.py").write_text(TRAIN)
    (root / ".git").mkdir()  # it is a project
    return root


def shardyard(up: Up, cwd: Path, *arguments: str, typed: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDYARD_")}
    return subprocess.run(
        [sys.executable, "-m", "shardyard", *arguments],
        cwd=cwd,
        env=environment | {"SHARDYARD_DATA_DIR": str(up.data_dir)},
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def everything(up: Up) -> bytes:
    program = embedded_redis.find_server()
    urls = [embedded_redis.prepare_redis(name, up.data_dir, program).url for name in ("control", "telemetry")]
    with closing(redis.Redis.from_url(urls[0])) as control, closing(redis.Redis.from_url(urls[1])) as telemetry:
        return read_everything(up.data_dir, control, telemetry)


@pytest.mark.slow
def test_a_secret_is_used_and_its_value_is_nowhere_afterwards(up: Up, project: Path) -> None:
    client = up.start()
    assert (up.data_dir / "secret.key").stat().st_mode & 0o777 == 0o600
    put = shardyard(up, project, "secret", "put", "hf", typed=VALUE + "\n")
    assert put.returncode == 0, put.stderr
    sent = shardyard(up, project, "submit", "--script", "train.py", "--secret", "HF_TOKEN=hf", "--no-watch")
    assert sent.returncode == 0, sent.stderr
    job = sent.stdout.strip()

    status = wait_for_state(client, job, "succeeded", "failed")
    assert status.error is not None
    assert status.error["message"] == "PermissionError: the hub refuses [secret hf]"
    assert status.spec["program"]["secrets"] == {"HF_TOKEN": "hf"}
    printed = [line.text for line in client.job(job).logs() if line.stream == "stdout"]
    assert printed == [f"a marker {len(VALUE)} [secret hf]"]
    found = everything(up)
    assert b"a marker" in found
    assert VALUE.encode() not in found

    theirs = Client(client.url, client.create_token("theirs", tenant="rival").token)
    with closing(theirs), pytest.raises(UnknownSecret):
        theirs.submit_script(project / "train.py", secrets={"HF_TOKEN": "hf"})


@pytest.mark.slow
def test_a_restart_of_the_service_keeps_its_secrets(up: Up, project: Path) -> None:
    client = up.start()
    client.put_secret("hf", VALUE)
    key = (up.data_dir / "secret.key").read_bytes()
    up.stop()
    client = up.start()
    assert (up.data_dir / "secret.key").read_bytes() == key
    assert [one.name for one in client.list_secrets()] == ["hf"]
    job = client.submit_script(project / "train.py", secrets={"HF_TOKEN": "hf"}).id
    assert wait_for_state(client, job, "failed").error is not None
    assert f"a marker {len(VALUE)} [secret hf]" in [line.text for line in client.job(job).logs()]
