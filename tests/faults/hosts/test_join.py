"""A machine that shares nothing with the service joins it with the printed line alone, and works as a node."""

import hashlib
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardyard.client import Job
from tests.faults.scene.joined_hosts import JoinedHost, JoinedService, joined_hosts
from tests.faults.scene.machine import need

pytestmark = [pytest.mark.integration, pytest.mark.faults]

END_SECONDS = 300.0
S3_PORT = 9000
RECIPE = {
    "name": "recipe",
    "resources": {"devices": 1},
    "parallelism": {"strategy": "ddp"},
    "program": {
        "kind": "recipe",
        "model": {"ref": "digits_cnn", "args": {"channels": 4}},
        "data": {"ref": "digits", "args": {"split": "train"}, "batch_size": 64},
        "loss": {"ref": "cross_entropy"},
        "optimizer": {"ref": "sgd", "args": {"lr": 0.05}},
        "epochs": 1,
    },
}
SCRIPT = """
import hashlib, os, pathlib, socket, sys
from helper import TEXT
body = os.urandom(3_000_001)
pathlib.Path("made.bin").write_bytes(body)
pathlib.Path(os.environ["SHARDYARD_OUTPUT_DIR"], "stored.bin").write_bytes(body[::-1])
print(TEXT, socket.gethostname(), hashlib.sha256(body).hexdigest(), hashlib.sha256(body[::-1]).hexdigest())
for number in range(2000):
    print("line", number)
"""


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JoinedService]:
    """Two hosts, of which the second has joined."""
    need("network namespaces", "mounts")
    with joined_hosts(tmp_path_factory.mktemp("joined")) as service:
        service.join(2)
        yield service


def start_bucket(first: JoinedHost) -> None:
    """A server on the first host that has the bucket of the service."""
    server = (sys.executable, "-m", "moto.server", "-H", first.address, "-p", str(S3_PORT))
    first.start_program(*server, until="Running on")
    put = f"import urllib.request as r; r.urlopen(r.Request('http://{first.address}:{S3_PORT}/files', method='PUT'))"
    subprocess.run(first.command(sys.executable, "-c", put), check=True, timeout=30)


def project(directory: Path, **files: str) -> Path:
    """A directory with Python files; the first is the program."""
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text)
    return directory / f"{next(iter(files))}.py"


def ended(job: Job) -> Job:
    return job.wait(END_SECONDS, check=False)


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_printed_line_alone_makes_a_node_that_runs_recipes_and_scripts(
    joined: JoinedService, tmp_path: Path
) -> None:
    table = joined.machines[2].said()
    assert "failed" not in table, table
    for row in (
        "version",
        "clock",
        "control Redis, supervisors",
        "telemetry Redis, workers",
        "storage",
        "torch",
        "box",
    ):
        assert any(line.startswith("ok ") and row in line for line in table.splitlines()), (row, table)
    assert "it reaches 10.77.0.12 port" in table
    with joined.only(2):
        recipe = joined.client.submit(RECIPE)
        script = joined.client.submit_script(project(tmp_path / "own", train=SCRIPT, helper="TEXT = 'made on'"))
        for job in (recipe, script):
            assert ended(job).state == "succeeded", job.status
            assert {place.node for place in job.status.placement} == {"box2"}
    lines = [line.text for line in script.logs(stream="stdout")]
    assert lines[1:] == [f"line {number}" for number in range(2000)]
    words = lines[0].split()
    assert words[:3] == ["made", "on", "box2"]
    found = {artifact.path for artifact in script.artifacts()}
    for path, digest in (("made.bin", words[3]), ("stored.bin", words[4])):
        (full,) = (name for name in found if name.endswith(path))
        assert digest_of(script.download(full, tmp_path / path)) == digest, path
    assert recipe.status.result is not None


@pytest.mark.slow
def test_a_node_joins_a_service_whose_files_are_in_a_bucket(tmp_path: Path) -> None:
    need("network namespaces", "mounts")
    own = {
        "AWS_ENDPOINT_URL": f"http://10.77.0.11:{S3_PORT}",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "SHARDYARD_STORAGE": "s3://files/of/ours",
    }
    with joined_hosts(tmp_path, 2, "2g", start_bucket, **own) as service:
        unset = service.machines[2].run(*service.invitation, "--devices", "cpu:1")
        assert unset.returncode != 0
        assert "SHARDYARD_STORAGE" in unset.stdout + unset.stderr
        service.join(2, **own)
        node_env = (service.machines[2].root / "tmp" / "home" / ".config" / "shardyard" / "node.env").read_text()
        assert "s3://files/of/ours" in node_env
        with service.only(2):
            script = service.client.submit_script(project(tmp_path / "own", train=SCRIPT, helper="TEXT = 'made on'"))
            assert ended(script).state == "succeeded", script.status
        words = next(iter(script.logs(stream="stdout"))).text.split()
        (full,) = (artifact.path for artifact in script.artifacts() if artifact.path.endswith("stored.bin"))
        assert digest_of(script.download(full, tmp_path / "stored.bin")) == words[4]
        assert not service.storage.exists(), "nothing lies on the first host"


@pytest.mark.slow
def test_a_rerun_is_harmless_and_checks_again(joined: JoinedService) -> None:
    second = joined.machines[2]
    settings = second.root / "tmp" / "home" / ".config" / "shardyard" / "node.env"
    before = settings.read_text()
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600
    assert stat.S_IMODE(settings.parent.stat().st_mode) == 0o700
    again = second.run(*joined.invitation)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "its worker runs here already" in again.stdout
    assert settings.read_text() == before, "it has a token already, and got no other one"
    checked = second.run("join", "--check")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert {node.id for node in joined.client.nodes() if node.alive} == {"box1", "box2"}


def test_another_certificate_gets_no_token_and_another_token_gets_nothing(joined: JoinedService) -> None:
    second = joined.machines[2]
    wrong = [*joined.invitation[:-1], "sha256:" + "0" * 64]
    refused = second.run(*wrong, "--check", "--directory", "/tmp/elsewhere")
    assert refused.returncode == 2
    assert "Nothing was sent" in refused.stderr
    unknown = [word if word.startswith(("join", "https", "--", "sha256")) else "sy_0_0" for word in joined.invitation]
    refused = second.run(*unknown, "--check", "--directory", "/tmp/elsewhere")
    assert refused.returncode == 4
    assert "shardyard invite" in refused.stderr
    assert not (second.root / "tmp" / "elsewhere").exists()
