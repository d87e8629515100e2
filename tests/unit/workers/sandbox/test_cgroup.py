"""Cgroups of version 2, on a directory that looks like theirs: the files that are written, and where."""

import errno
import os
from pathlib import Path

import pytest

from workers.runtime.limits import AttemptLimits
from workers.sandbox import cgroup

LIMITS = AttemptLimits(
    memory_bytes=1 << 30, processes=100, log_bytes=1, disk_bytes=1, files=1, tmp_bytes=1, shm_bytes=1
)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cgroup of this process, in a service of systemd that may make its own below it."""
    root, own = tmp_path / "cgroup", tmp_path / "cgroup" / "system.slice" / "worker.service"
    own.mkdir(parents=True)
    (root / "cgroup.controllers").write_text("cpu memory pids io")
    (own / "cgroup.type").write_text("domain")
    (own / "cgroup.controllers").write_text("cpu memory pids")
    (own / "cgroup.subtree_control").write_text("")
    (own / "cgroup.procs").write_text("17\n18\n")
    membership = tmp_path / "membership"
    membership.write_text("0::/system.slice/worker.service\n")
    monkeypatch.setattr(cgroup, "ROOT", root)
    monkeypatch.setattr(cgroup, "OWN", membership)
    return own


def test_controllers_are_enabled_once_the_service_is_in_a_leaf(own: Path) -> None:
    (own / cgroup.SERVICE).mkdir()
    (own / cgroup.SERVICE / "cgroup.procs").touch()
    cgroup.enable_controllers()
    assert (own / cgroup.SERVICE / "cgroup.procs").read_text() == "18"  # one process each write
    assert (own / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_a_container_sees_its_own_cgroup_as_the_root_and_leaves_it_too(own: Path, tmp_path: Path) -> None:
    root = tmp_path / "cgroup"
    (tmp_path / "membership").write_text("0::/\n")
    (root / cgroup.SERVICE).mkdir()
    for name in ("cgroup.subtree_control", "cgroup.procs"):
        (root / name).write_text("1" if name == "cgroup.procs" else "")
    cgroup.enable_controllers()
    assert not (root / cgroup.SERVICE / "cgroup.procs").exists(), "the host's root keeps its processes"
    (root / "cgroup.type").write_text("domain")
    (root / "cgroup.subtree_control").write_text("")
    cgroup.enable_controllers()
    assert (root / cgroup.SERVICE / "cgroup.procs").read_text() == "1"
    assert (root / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_a_service_that_is_started_in_its_leaf_enables_them_above_it(own: Path, tmp_path: Path) -> None:
    (tmp_path / "membership").write_text(f"0::/system.slice/worker.service/{cgroup.SERVICE}\n")
    (own / cgroup.SERVICE).mkdir()
    (own / "cgroup.procs").write_text("")
    cgroup.enable_controllers()
    assert (own / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert list((own / cgroup.SERVICE).iterdir()) == []


def test_another_worker_that_starts_at_the_same_time_does_not_keep_controllers_off(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own / cgroup.SERVICE).mkdir()
    busy, write = [OSError(errno.EBUSY, "busy")], Path.write_text

    def write_unless_busy(path: Path, text: str) -> int:
        if path.name == "cgroup.subtree_control" and busy:
            write(own / "cgroup.procs", "19\n")  # it came after the others had been moved
            raise busy.pop()
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", write_unless_busy)
    cgroup.enable_controllers()
    assert (own / cgroup.SERVICE / "cgroup.procs").read_text() == "19"
    assert (own / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_only_what_a_dead_process_has_made_for_a_box_is_removed(own: Path) -> None:
    ended = 1 << 22  # more than any process id
    kept = [own / f"{cgroup.PREFIX}{name}" for name in (f"box-{os.getpid()}-17", "tenant.job.1")]
    for directory in (*kept, own / f"{cgroup.PREFIX}box-{ended}-17"):
        directory.mkdir()
    cgroup.remove_unused_cgroups()
    assert sorted(own.glob(f"{cgroup.PREFIX}*")) == sorted(kept)


def test_what_is_enabled_already_stays(own: Path) -> None:
    (own / "cgroup.subtree_control").write_text("cpu memory pids")
    cgroup.enable_controllers()
    assert not (own / cgroup.SERVICE).exists()


def test_a_cgroup_of_version_2_has_one_directory_for_all_its_controllers(own: Path, tmp_path: Path) -> None:
    (own / "cgroup.subtree_control").write_text("memory pids")
    made = own / f"{cgroup.PREFIX}job"
    made.mkdir()
    for name in ("cgroup.procs", "memory.max", "memory.swap.max", "pids.max"):
        (made / name).touch()
    group = cgroup.create_cgroup("job")
    assert group is not None
    assert set(group.directories.values()) == {made}
    assert group.limited == {"memory", "pids"}
    group.set_limits(LIMITS, devices=2)
    assert (made / "memory.max").read_text() == str(1 << 30)
    assert (made / "memory.swap.max").read_text() == "0"
    assert (made / "pids.max").read_text() == "101"
    assert not (made / "cpu.weight").exists()
    group.write_record(tmp_path / "record")
    (made / "cgroup.procs").write_text("5\n4\n")
    assert cgroup.cgroup_members(tmp_path / "record") == [4, 5]


def test_a_service_in_its_leaf_makes_cgroups_beside_it(own: Path, tmp_path: Path) -> None:
    (tmp_path / "membership").write_text(f"0::/system.slice/worker.service/{cgroup.SERVICE}\n")
    (own / "cgroup.subtree_control").write_text("memory")
    made = own / f"{cgroup.PREFIX}job"
    made.mkdir()
    (made / "cgroup.procs").touch()
    group = cgroup.create_cgroup("job")
    assert group is not None
    assert group.directories["memory"] == made


def test_a_host_that_allows_none_gives_none(own: Path) -> None:
    own.rename(own.with_name("gone"))
    assert cgroup.create_cgroup("job") is None
