"""A machine that shares nothing with the service joins it with the printed line alone, and works as a node."""

import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardyard.client import Job
from tests.faults.scene.joined_hosts import JoinedService, joined_hosts
from tests.faults.scene.machine import need

pytestmark = [pytest.mark.integration, pytest.mark.faults]

END_SECONDS = 300.0
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
