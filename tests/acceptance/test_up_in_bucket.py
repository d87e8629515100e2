"""`shardyard up` with a bucket as its storage: a script and a recipe with checkpoints, and all of them again on a host
that knows nothing but the data directory."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness.s3 import variables_of
from tests.acceptance.harness import Up, wait_until
from tests.acceptance.test_up import digits, is_past
from tests.support.servers.s3_proxy import S3Proxy, s3_proxy
from tests.support.servers.s3_server import MOTO, SEAWEEDFS, s3_bucket

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

BODY = bytes(range(256)) * 30_000
SCRIPT = """
import os, pathlib
pathlib.Path(os.environ["SHARDYARD_OUTPUT_DIR"], "made.bin").write_bytes(bytes(range(256)) * 30_000)
pathlib.Path("left.txt").write_text("left behind")
print("\\n".join(f"line {number}" for number in range(2_000)))
"""


@pytest.fixture(params=[MOTO, SEAWEEDFS])
def bucket(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    with s3_bucket(tmp_path, "jobs", request.param) as server, s3_proxy(server) as proxy:
        for name, value in {"SHARDYARD_STORAGE": "s3://jobs/shardyard", **variables_of(proxy.url)}.items():
            monkeypatch.setenv(name, value)
        yield proxy


def test_jobs_leave_everything_in_the_bucket_and_outages_of_it_cost_them_nothing(
    bucket: S3Proxy, up: Up, tmp_path: Path
) -> None:
    client = up.start("--devices", "cpu:3")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    wanted = [f"line {number}" for number in range(2_000)]
    script = client.submit_script(tmp_path / "code" / "train.py")
    assert script.wait(timeout=120).status.state == "succeeded"
    spec = digits(epochs=80)
    spec["program"]["checkpoint"] = {"every_steps": 20}
    recipe = client.submit(spec)
    wait_until(lambda: is_past(client, recipe.id, 0), 120)
    bucket.refusal = (503, "SlowDown")  # it ends while the bucket is away, and is told when that is back
    wait_until(lambda: not any(node.attempts for node in client.nodes()), 240)
    assert client.job(recipe.id).status.state == "running"
    bucket.heal()
    assert recipe.wait(timeout=240).status.state == "succeeded"

    def check() -> None:
        lines = [line.text for line in client.job(script.id).logs() if line.stream == "stdout"]
        assert lines == wanted
        assert b"".join(client.job(script.id).read("made.bin")) == BODY
        assert b"".join(client.job(script.id).read("left.txt")) == b"left behind"
        assert client.job(recipe.id).report().devices
        assert any(one.kind == "checkpoint" for one in client.job(recipe.id).artifacts())

    check()
    assert not (up.data_dir / "storage").exists()
    assert up.stop() == 0
    shutil.rmtree(up.data_dir / "node")  # its copies, and what the node knew
    client = up.start("--devices", "cpu:3")
    check()
