"""What is read of the files of a cgroup; `tests/process` has real ones."""

from pathlib import Path

import pytest

from workers.runtime.limits import AttemptLimits
from workers.supervisor.limits.breach import LimitBreach
from workers.supervisor.limits.cgroup_meter import LOOK_SECONDS, CgroupMeter

LIMITS = AttemptLimits(1000, 20, 2**30, 2**30, 1000, 2**20, 2**20)
EVENTS_V2 = "low 0\nhigh 0\nmax 4\noom 1\noom_kill {}\noom_group_kill 0\n"
EVENTS_V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"
PROCESSES = {"pids.events": "max {}\n", "pids.max": "21\n", "pids.current": "7\n"}
MEMORY = {
    "v2": {"memory.events": EVENTS_V2, "memory.max": "1000\n", "memory.peak": "1004\n"},
    "v1": {
        "memory.oom_control": EVENTS_V1,
        "memory.limit_in_bytes": "1000\n",
        "memory.max_usage_in_bytes": "1004\n",
    },
}


def write(directory: Path, files: dict[str, str], hits: int) -> Path:
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / name).write_text(text.format(hits))
    return directory


@pytest.mark.parametrize("version", MEMORY)
def test_a_limit_that_was_hit_is_a_breach(version: str, tmp_path: Path) -> None:
    memory = write(tmp_path / "memory", MEMORY[version], 0)
    processes = write(tmp_path / "pids", PROCESSES, 0)
    meter, other = CgroupMeter(LIMITS, [memory, processes]), CgroupMeter(LIMITS, [processes])
    assert meter.watched == {"memory", "processes"}
    assert other.watched == {"processes"}
    assert meter.check(0.0) is other.check(0.0) is None
    write(processes, PROCESSES, 1)
    assert meter.check(1.0) == other.check(1.0) == LimitBreach("processes", 20, 20)
    write(memory, MEMORY[version], 1)
    assert meter.check(2.0) == LimitBreach("memory", 1004, 1000)


def test_a_limit_that_was_hit_before_anyone_looked_is_a_breach_too(tmp_path: Path) -> None:
    processes = write(tmp_path / "pids", PROCESSES, 7)
    assert CgroupMeter(LIMITS, [processes]).check(0.0) == LimitBreach("processes", 20, 20)


def test_version_2_has_all_files_in_one_directory(tmp_path: Path) -> None:
    directory = write(tmp_path / "both", MEMORY["v2"] | PROCESSES, 0)
    assert CgroupMeter(LIMITS, [directory]).watched == {"memory", "processes"}


def test_it_is_looked_at_now_and_then_or_at_once(tmp_path: Path) -> None:
    directory = write(tmp_path / "memory", MEMORY["v2"], 0)
    meter = CgroupMeter(LIMITS, [directory])
    assert meter.check(10.0) is None
    write(directory, MEMORY["v2"], 1)
    assert meter.check(10.0 + LOOK_SECONDS / 2) is None
    assert meter.check(10.0 + LOOK_SECONDS / 2, at_once=True) is not None


@pytest.mark.parametrize("text", ["max\n", "", "rubbish"])
def test_files_that_say_nothing_are_no_breach(text: str, tmp_path: Path) -> None:
    directory = write(tmp_path / "memory", dict.fromkeys(MEMORY["v2"], text), 0)
    meter = CgroupMeter(LIMITS, [directory, tmp_path / "nowhere"])
    assert meter.check(0.0) is None
    for name in MEMORY["v2"]:
        (directory / name).unlink()
    assert meter.check(1.0) is None
