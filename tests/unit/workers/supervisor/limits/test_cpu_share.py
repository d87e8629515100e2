"""An attempt with a crowd of processes steps back, and comes back when it is small again."""

from pathlib import Path

import pytest

from workers.supervisor.limits.cpu_share import CROWD, LOOK_SECONDS, CpuShare


@pytest.mark.parametrize(
    ("directories", "weight", "usual", "least"),
    [(("both", "both"), "cpu.weight", "200", "1"), (("cpu", "pids"), "cpu.shares", "2048", "16")],
)
def test_a_crowd_has_the_least_weight_until_it_has_halved(
    tmp_path: Path, directories: tuple[str, str], weight: str, usual: str, least: str
) -> None:
    cpu, pids = (tmp_path / name for name in directories)
    for directory in {cpu, pids}:
        directory.mkdir()
    (cpu / weight).write_text(usual)
    (pids / "pids.current").write_text("3")
    share = CpuShare(sorted({cpu, pids}), devices=2)
    found, now = [], 0.0
    for processes in (3, 2 * CROWD, 2 * CROWD + 1, CROWD + 1, CROWD, 2 * CROWD):
        (pids / "pids.current").write_text(str(processes))
        share.check(now)
        found.append((cpu / weight).read_text())
        now += LOOK_SECONDS
    assert found == [usual, usual, least, least, usual, usual]


def test_it_looks_only_when_it_is_due_or_told_to(tmp_path: Path) -> None:
    (tmp_path / "cpu.weight").write_text("100")
    (tmp_path / "pids.current").write_text("1")
    share = CpuShare([tmp_path], devices=1)
    share.check(10.0)
    (tmp_path / "pids.current").write_text(str(CROWD + 1))
    share.check(10.0 + LOOK_SECONDS / 2)
    assert (tmp_path / "cpu.weight").read_text() == "100"
    share.check(10.0 + LOOK_SECONDS / 2, at_once=True)
    assert (tmp_path / "cpu.weight").read_text() == "1"


def test_a_cgroup_that_counts_no_processes_or_is_gone_changes_nothing(tmp_path: Path) -> None:
    CpuShare([], devices=1).check(0.0)
    (tmp_path / "pids.current").write_text("1")
    (tmp_path / "cpu.weight").write_text("100")
    share = CpuShare([tmp_path], devices=1)
    (tmp_path / "pids.current").unlink()
    share.check(0.0)
    (tmp_path / "pids.current").write_text(str(2 * CROWD))
    share.check(1.0, at_once=True)
    assert (tmp_path / "cpu.weight").read_text() == "100"
