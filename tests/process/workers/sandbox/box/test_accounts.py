"""Accounts out of a range: by real locks and processes. Needs root."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workers.sandbox.box import accounts

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

FIRST = 0x70001F00  # above the range that services take


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(accounts, "LOCKS", tmp_path / "accounts")
    return tmp_path / "accounts"


def taken_by_another_process(locks: Path, count: int) -> "subprocess.Popen[str]":
    """A process that takes an account, says which, and waits."""
    program = (
        "import sys; from pathlib import Path; from workers.sandbox.box import accounts\n"
        f"accounts.LOCKS = Path({str(locks)!r})\n"
        f"print(accounts.take_account({FIRST}, {count}, (), 100).account.uid, flush=True)\n"
        "sys.stdin.read()"
    )
    return subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_no_account_is_given_to_two(locks: Path) -> None:
    with taken_by_another_process(locks, 2) as other:
        assert other.stdout is not None
        first = int(other.stdout.readline())
        mine = accounts.take_account(FIRST, 2, (), 100)
        assert {first, mine.account.uid} == {FIRST, FIRST + 1}
        with taken_by_another_process(locks, 2) as third:
            assert third.wait(30) != 0, "both are taken"
        mine.give_back()
        assert other.stdin is not None
        other.stdin.close()


def test_what_a_dead_holder_has_left_is_killed_before_the_account_is_given_again(locks: Path) -> None:
    with taken_by_another_process(locks, 1) as holder:
        assert holder.stdout is not None
        assert int(holder.stdout.readline()) == FIRST
        left = subprocess.Popen(["sleep", "600"], user=FIRST, group=FIRST, extra_groups=[])
        holder.kill()
    assert [*accounts.processes_of_account(FIRST)] == [left.pid]
    taken = accounts.take_account(FIRST, 1, (), 100)
    assert left.wait(10) == -9
    assert [*accounts.processes_of_account(FIRST)] == []
    taken.give_back()
    assert (locks / str(FIRST)).read_bytes() == b""


def test_the_range_belongs_to_nobody() -> None:
    first, count = accounts.choose_range()
    assert count >= 1000
    found = subprocess.run(["getent", "passwd"], capture_output=True, text=True, check=True).stdout
    assert not any(first <= int(line.split(":")[2]) < first + count for line in found.splitlines())


def test_a_range_in_subuid_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = accounts._read_ranges

    def read_ranges(file: str, **how: int) -> list[tuple[int, int]]:
        return [(0x70000000, 65_536)] if file == "/etc/subuid" else real(file, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(accounts, "_read_ranges", read_ranges)
    assert accounts.choose_range() == accounts.RANGES[1]


def test_processes_that_will_not_die_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "processes_of_account", lambda _: iter([2**22 + 1]))
    began = time.monotonic()
    with pytest.raises(OSError, match="would not die"):
        accounts.kill_account(FIRST, 0.05)
    assert time.monotonic() - began < 60
