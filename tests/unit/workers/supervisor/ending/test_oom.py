"""Whose hand SIGKILL was."""

from pathlib import Path

import pytest

from workers.supervisor.ending.oom import count_oom_kills


def own(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "cgroup"
    file.write_text(text)
    return file


def counted(tmp_path: Path, file: str, text: str) -> None:
    place = tmp_path / "sys" / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


@pytest.mark.parametrize(
    ("groups", "file", "text"),
    [
        ("0::/user/job\n", "user/job/memory.events", "low 0\noom 4\noom_kill 3\n"),
        ("0::/host/path\n", "memory.events", "oom_kill 3\n"),
        ("8:pids:/\n4:memory:/box\n0::/\n", "memory/box/memory.oom_control", "oom_kill_disable 0\noom_kill 3\n"),
        ("4:memory:/docker/abc\n", "memory/memory.oom_control", "under_oom 0\noom_kill 3\n"),
    ],
    ids=["version 2", "version 2 in a container", "version 1", "version 1 in a container"],
)
def test_the_kernels_count_is_found(tmp_path: Path, groups: str, file: str, text: str) -> None:
    counted(tmp_path, file, text)
    assert count_oom_kills((), tmp_path / "sys", own(tmp_path, groups)) == 3


def test_a_host_that_does_not_count_is_no_zero(tmp_path: Path) -> None:
    assert count_oom_kills((), tmp_path / "sys", own(tmp_path, "0::/\n1:cpu:/\n")) is None
    assert count_oom_kills((), tmp_path / "sys", tmp_path / "missing") is None
