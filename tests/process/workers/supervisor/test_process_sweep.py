"""Each mark alone finds its process: real processes, and an attempt that has this one mark only."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.store import AttemptId
from tests.support.samples.attempts import ATTEMPT
from workers.runtime.launch import AttemptDirectory, attempt_variable
from workers.runtime.process_status import read_start_time
from workers.sandbox import cgroup
from workers.supervisor.process_sweep import is_supervisor_dead, sweep_attempt

SLEEP = [sys.executable, "-S", "-c", "import time; print('up', flush=True); time.sleep(60)"]


@pytest.fixture
def marks(tmp_path: Path) -> AttemptDirectory:
    made = AttemptDirectory.of(tmp_path, ATTEMPT)
    made.create()
    return made


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a sleeping program; it is dead after the test, whatever came."""
    started: list[subprocess.Popen[bytes]] = []

    def run(**options: object) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(SLEEP, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
        started.append(child)
        assert child.stdout.readline() == b"up\n"
        return child  # type: ignore[no-any-return]

    yield run
    for child in started:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


def sleeper(before: Callable[[], None] = lambda: None) -> int:
    """A forked process that has done `before`, and now sleeps."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        before()
        os.write(writer, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    return pid


def is_gone(pid: int) -> bool:
    """Whether the sweep has killed and buried a child of this process."""
    try:
        done, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return True
    return done == pid and os.WIFSIGNALED(status)


def test_an_attempt_without_processes_is_swept_at_once(marks: AttemptDirectory) -> None:
    assert sweep_attempt(marks, ATTEMPT, 0) == {}


def test_a_process_that_nothing_marks_is_left_alone(
    marks: AttemptDirectory, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    stranger = start(env={})
    assert sweep_attempt(marks, ATTEMPT, 0) == {}
    assert stranger.poll() is None


def test_the_session_finds_a_forked_process(marks: AttemptDirectory) -> None:
    leader = sleeper(os.setsid)
    marks.session.write_text(f"{leader} {read_start_time(leader)}")
    assert sweep_attempt(marks, ATTEMPT) == {}
    assert is_gone(leader)


def test_a_session_number_that_belongs_to_somebody_else_by_now_marks_nobody(marks: AttemptDirectory) -> None:
    leader = sleeper(os.setsid)
    marks.session.write_text(f"{leader} {read_start_time(leader) - 1}")
    assert sweep_attempt(marks, ATTEMPT, 0) == {}
    os.kill(leader, 9)
    os.waitpid(leader, 0)


def test_the_environment_finds_a_program_that_has_left_the_session_and_closed_its_files(
    marks: AttemptDirectory, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    name, value = attempt_variable(ATTEMPT)
    child = start(env={name: value}, start_new_session=True, close_fds=True)
    other = start(env={name: value + "0"}, start_new_session=True)  # the thirtieth attempt
    assert sweep_attempt(marks, ATTEMPT) == {}
    assert child.wait(60) in (-9, 0)  # 0: the sweep has buried it, so nobody knows how it ended
    assert other.poll() is None


def test_a_program_that_has_left_the_session_is_found_if_it_is_not_older_than_that(
    marks: AttemptDirectory, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    name, value = attempt_variable(ATTEMPT)
    child = start(env={name: value}, start_new_session=True)
    marks.session.write_text(f"{os.getpid()} {read_start_time(child.pid) + 1}")
    assert sweep_attempt(marks, ATTEMPT, 0) == {}
    assert child.poll() is None
    marks.session.write_text(f"{os.getpid()} {read_start_time(os.getpid())}")
    assert sweep_attempt(marks, ATTEMPT) == {}
    assert child.wait(60) in (-9, 0)


def test_the_lock_finds_a_forked_process_that_has_left_the_session(marks: AttemptDirectory) -> None:
    lock = os.open(marks.ranks_lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    pid = sleeper(os.setsid)
    os.close(lock)
    assert sweep_attempt(marks, ATTEMPT) == {}
    assert is_gone(pid)


def test_the_lock_finds_a_program_by_whatever_path_its_file_was_opened(
    marks: AttemptDirectory, tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    (tmp_path / "alias").symlink_to(tmp_path)
    lock = os.open(marks.ranks_lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    child = start(env={}, start_new_session=True, pass_fds=(lock,))
    os.close(lock)
    assert sweep_attempt(AttemptDirectory.of(tmp_path / "alias", ATTEMPT), ATTEMPT) == {}
    assert child.wait(60) in (-9, 0)  # 0: the sweep has buried it, so nobody knows how it ended


def test_the_cgroup_finds_a_process_that_has_no_other_mark(marks: AttemptDirectory) -> None:
    group = cgroup.create_cgroup(f"test-{os.getpid()}")
    if group is None:
        pytest.skip("no cgroup is writable here")
    group.write_record(marks.cgroup)
    pid = sleeper(group.enter)
    if not cgroup.cgroup_members(marks.cgroup):
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        pytest.skip("this host does not let a process enter the cgroup that it has made")
    assert sweep_attempt(marks, ATTEMPT) == {}
    assert is_gone(pid)
    assert not any(directory.exists() for directory in group.directories.values())


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes under another account")
#: An account that nobody has.
UID = 64_322


@pytest.fixture
def start_of_account() -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts a process of the account that has no other mark. A Python may be out of the account's reach."""
    started: list[subprocess.Popen[bytes]] = []

    def run() -> subprocess.Popen[bytes]:
        command = ["/bin/sh", "-c", "echo up; exec sleep 60"]
        child = subprocess.Popen(
            command, env={}, stdout=subprocess.PIPE, start_new_session=True, user=UID, group=UID, extra_groups=[]
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        return child

    yield run
    for child in started:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@NEEDS_ROOT
@pytest.mark.parametrize("mark", ["box", "account"])
def test_the_account_finds_a_process_that_has_no_other_mark(
    marks: AttemptDirectory, start_of_account: Callable[[], subprocess.Popen[bytes]], mark: str
) -> None:
    marks.box.write_text(f"0 0 {UID if mark == 'box' else -1}")
    if mark == "account":
        marks.box.unlink()
        marks.account.write_text(str(UID))
    child = start_of_account()
    assert sweep_attempt(marks, ATTEMPT) == {}
    assert child.wait(60) in (-9, 0)
    assert not marks.account.exists(), "from now on it may be another attempt's"


@NEEDS_ROOT
def test_an_account_that_another_attempt_has_by_now_marks_nobody(
    marks: AttemptDirectory, start_of_account: Callable[[], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    other = AttemptDirectory.of(tmp_path, AttemptId("default", "job-2", 1))
    other.create()
    for each in (marks, other):
        each.account.write_text(str(UID))
    child = start_of_account()
    assert sweep_attempt(marks, ATTEMPT, 0) == {}
    assert child.poll() is None
    assert other.account.exists()


def test_what_will_not_die_is_named(marks: AttemptDirectory) -> None:
    """The sweep spares its own process, which holds the lock here."""
    lock = os.open(marks.ranks_lock, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert sweep_attempt(marks, ATTEMPT, 0.1) == {0: "an unseen process holds the attempt's lock"}
    os.close(lock)


def test_a_supervisor_is_alive_while_it_holds_its_lock_and_dead_when_it_never_was(marks: AttemptDirectory) -> None:
    assert is_supervisor_dead(marks)

    def take_lock() -> None:
        handle = os.open(marks.supervisor_lock, os.O_RDWR | os.O_CREAT)
        fcntl.lockf(handle, fcntl.LOCK_EX)

    pid = sleeper(take_lock)
    assert not is_supervisor_dead(marks)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert is_supervisor_dead(marks)
