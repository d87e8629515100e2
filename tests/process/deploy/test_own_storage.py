"""What a worker's container does to a storage that belongs to the API's account, in a mount namespace of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")

DEPLOY = Path(__file__).parents[3] / "deploy"
API, ATTEMPT = 10_001, 1_879_048_192
PROGRAM = """
import os, sys
from pathlib import Path
import own_storage
own_storage.STORAGE = storage = Path(sys.argv[1])
own_storage.main()
own_storage.main()  # the second time there is nothing to do
print([(storage / name).stat().st_uid for name in ("report.json", "of-an-attempt")])
(storage / "log").write_text("written by root")
(storage / "given").touch()
os.chown(storage / "given", int(sys.argv[2]), int(sys.argv[2]))
"""


def as_worker(storage: Path, *prefix: str) -> "subprocess.CompletedProcess[str]":
    command = ["unshare", "--mount", *prefix, sys.executable, "-c", PROGRAM, str(storage), str(ATTEMPT)]
    return subprocess.run(command, cwd=DEPLOY, text=True, capture_output=True, check=False, timeout=60)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    made = tmp_path / "storage"
    made.mkdir(mode=0o700)
    for name, owner in (("report.json", API), ("of-an-attempt", ATTEMPT), ("", API)):
        path = made / name
        if name:
            path.touch()
        os.chown(path, owner, owner)
    return made


def test_a_worker_sees_the_apis_files_as_its_own_and_writes_them_for_the_api(storage: Path) -> None:
    ran = as_worker(storage)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == f"[0, {ATTEMPT}]"
    found = {path.name: (path.stat().st_uid, path.stat().st_gid) for path in storage.iterdir()}
    assert found["log"] == found["report.json"] == (API, API)
    assert found["given"] == found["of-an-attempt"] == (ATTEMPT, ATTEMPT)


def test_where_that_is_not_allowed_the_worker_says_what_to_run(storage: Path) -> None:
    ran = as_worker(storage, "setpriv", "--bounding-set", "-setfcap", "--inh-caps", "-setfcap")
    assert ran.returncode == 1
    assert "echo SHARDYARD_API_USER=0 >> .env && docker compose up --detach --wait" in ran.stderr
    assert not (storage / "log").exists()


def test_a_storage_that_is_roots_is_left_as_it_is(storage: Path) -> None:
    os.chown(storage, 0, 0)
    ran = as_worker(storage)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == f"[{API}, {ATTEMPT}]"
