"""What an account leaves on a host, left by real processes of it. Needs root."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.workers.places import a_place
from workers.sandbox import leavings

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes under another account")

#: Accounts that nobody has.
UID, NEIGHBOUR = 64_323, 64_324


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory that everybody may write to, in place of those of the host."""
    with a_place() as place:
        directory = place / "shared"
        directory.mkdir()
        directory.chmod(0o1777)
        monkeypatch.setattr(leavings, "SHARED_DIRECTORIES", (str(directory),))
        monkeypatch.setattr(tempfile, "tempdir", str(directory))
        yield directory


@pytest.fixture(autouse=True)
def nothing_of_them() -> Iterator[None]:
    yield
    for uid in (UID, NEIGHBOUR):
        leavings.remove_leavings(uid)


def run_as(uid: int, command: str, directory: Path) -> str:
    done = subprocess.run(
        ["/bin/sh", "-ec", command], user=uid, group=uid, extra_groups=[], cwd=directory, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_files_of_an_account_go_and_those_of_others_stay(shared: Path) -> None:
    (shared / "open").mkdir()
    (shared / "open").chmod(0o777)
    (shared / "closed").mkdir()
    (shared / "ours").write_text("ours")
    for uid, name in ((UID, "left"), (NEIGHBOUR, "kept")):
        run_as(uid, f"echo secret > {name}; chmod 600 {name}; mkdir -m 700 {name}.d; echo x > {name}.d/x", shared)
        run_as(uid, f"echo x > open/{name}; ln -s ../ours open/{name}.link; mkfifo {name}.pipe", shared)
    leavings.remove_leavings(UID)
    assert sorted(path.name for path in shared.iterdir()) == ["closed", "kept", "kept.d", "kept.pipe", "open", "ours"]
    assert sorted(path.name for path in (shared / "open").iterdir()) == ["kept", "kept.link"]
    assert (shared / "ours").read_text() == "ours"


def test_a_deep_tree_goes_too(shared: Path) -> None:
    run_as(UID, "for i in $(seq 300); do mkdir directory; cd directory; done; echo x > x", shared)
    leavings.remove_leavings(UID)
    assert list(shared.iterdir()) == []


def test_memory_semaphores_and_queues_of_an_account_go_and_those_of_others_stay(shared: Path) -> None:
    for uid in (UID, NEIGHBOUR):
        run_as(uid, "ipcmk -M 4096 -S 1 -Q", shared)
    assert all(objects_of(uid) == {"shm": 1, "sem": 1, "msg": 1} for uid in (UID, NEIGHBOUR))
    leavings.remove_leavings(UID)
    assert objects_of(UID) == {"shm": 0, "sem": 0, "msg": 0}
    assert objects_of(NEIGHBOUR) == {"shm": 1, "sem": 1, "msg": 1}


def objects_of(uid: int) -> dict[str, int]:
    found = {}
    for kind in ("shm", "sem", "msg"):
        header, *lines = Path("/proc/sysvipc", kind).read_text().splitlines()
        column = header.split().index("uid")
        found[kind] = sum(line.split()[column] == str(uid) for line in lines)
    return found
