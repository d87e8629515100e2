"""Whom ranks run as, from a setting."""

import os
import pwd
from pathlib import Path

import pytest

from jobs.support import fs
from jobs.support.directory_cursor import walk_directories
from tests.support.samples.backed_up_trees import make_below
from workers.node.devices import discover_devices
from workers.runtime.launch import RankAccount
from workers.sandbox import run_as as confinement
from workers.sandbox.run_as import choose_accounts

DEVICES = discover_devices("cpu:4")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give ranks another account")


def test_without_the_setting_ranks_run_as_the_worker() -> None:
    assert choose_accounts("", DEVICES) is None


@as_root
def test_a_name_is_looked_up() -> None:
    known = next(one for one in pwd.getpwall() if one.pw_uid and one.pw_gid)
    accounts = choose_accounts(known.pw_name, DEVICES)
    assert accounts is not None
    assert accounts.for_devices([2]) == RankAccount(known.pw_uid, known.pw_gid, (), known.pw_name)
    assert accounts.is_shared


@as_root
def test_numbers_need_no_entry_in_the_list_of_accounts() -> None:
    accounts = choose_accounts("20000:20999", DEVICES)
    assert accounts is not None
    assert accounts.for_devices([2]) == RankAccount(20_000, 20_999, (), "20000")


@as_root
def test_a_range_gives_each_lease_an_account_of_its_own() -> None:
    accounts = choose_accounts("20000-20003:20999", DEVICES)
    assert accounts is not None
    assert [accounts.for_devices(lease).uid for lease in ([0], [3, 1], [2])] == [20_000, 20_001, 20_002]
    assert not accounts.is_shared


@as_root
def test_virtual_nodes_divide_a_range_and_no_two_devices_of_a_machine_share_an_account() -> None:
    found = [choose_accounts("20000-20011:20999", DEVICES, nodes=3, before=before) for before in range(3)]
    uids = [one.for_devices([device]).uid for one in found if one is not None for device in range(4)]
    assert uids == list(range(20_000, 20_012))
    with pytest.raises(ValueError, match="has 12 accounts for 4 devices on each of 4 nodes; give one to each device"):
        choose_accounts("20000-20011:20999", DEVICES, nodes=4)


@as_root
def test_the_last_account_of_a_divided_range_is_no_shared_one() -> None:
    accounts = choose_accounts("20000-20001:20999", DEVICES[:1], nodes=2, before=1)
    assert accounts is not None
    assert accounts.for_devices([0]) == RankAccount(20_001, 20_999, (), "20001", is_own=True)


@as_root
@pytest.mark.parametrize(
    ("run_as", "why"),
    [
        ("nobody-here", "this host has no account 'nobody-here'"),
        ("20000", "this host has no account '20000'; write its name, uid:gid, or first-last:gid"),
        ("root", "is root, or of root's group"),
        ("0:20000", "is root, or of root's group"),
        ("20000:0", "is root, or of root's group"),
        ("0-9:20000", "is root, or of root's group"),
        ("20009-20000:20000", "has numbers that no account has"),
        ("4294967295:20000", "has numbers that no account has"),
        ("20000:4294967295", "has numbers that no account has"),
        ("20000-20002:20000", "has 3 accounts for 4 devices"),
    ],
)
def test_what_is_no_account_without_rights_is_refused(run_as: str, why: str) -> None:
    with pytest.raises(ValueError, match=f"SHARDYARD_RUN_AS: .*{why}"):
        choose_accounts(run_as, DEVICES)


def test_a_worker_that_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ValueError, match="only a worker that runs as root"):
        choose_accounts("20000:20000", DEVICES)


def test_a_way_is_opened_to_pass_and_not_to_look(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for directory in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        directory.chmod(0o700)
    confinement.make_passable(tmp_path / "a", tmp_path / "a" / "b")
    modes = [directory.stat().st_mode & 0o777 for directory in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")]
    assert modes == [0o700, 0o711, 0o711]


@as_root
def test_what_is_taken_back_is_ours_whatever_it_links_to(tmp_path: Path) -> None:
    elsewhere, attempt = tmp_path / "elsewhere", tmp_path / "attempt"
    given = attempt / "artifacts"
    elsewhere.touch()
    os.chown(elsewhere, 20_001, 20_001)
    (given / "deep").mkdir(parents=True)
    (given / "deep" / "link").symlink_to(elsewhere)
    attempt.chmod(0o711)
    confinement.give_tree(given, RankAccount(20_000, 20_000, (), ""))
    assert (given / "deep").stat().st_uid == 20_000
    confinement.take_back(attempt, given)
    assert {path.lstat().st_uid for path in given.rglob("*")} == {0}
    assert attempt.stat().st_mode & 0o777 == 0o700
    assert elsewhere.stat().st_uid == 20_001


@as_root
def test_a_tree_of_any_depth_is_taken_back(tmp_path: Path) -> None:
    attempt, given = tmp_path / "attempt", tmp_path / "attempt" / "artifacts"
    given.mkdir(parents=True)
    make_below(given, "d", 2000, b"deep")
    attempt.chmod(0o711)
    try:
        confinement.give_tree(given, RankAccount(20_000, 20_000, (), ""))
        assert {os.stat("d", dir_fd=here).st_uid for here, names in walk_directories(given) if "d" in names} == {20_000}
        assert confinement.take_back(attempt, given)
        owners = {os.stat(name, dir_fd=here).st_uid for here, names in walk_directories(given) for name in names}
        assert owners == {0}
    finally:
        fs.remove_tree(attempt)


def test_nothing_is_done_where_no_way_was_opened(tmp_path: Path) -> None:
    (tmp_path / "attempt").mkdir(mode=0o700)
    confinement.take_back(tmp_path / "attempt", tmp_path / "attempt" / "artifacts")
    confinement.take_back(tmp_path / "gone", tmp_path / "gone" / "artifacts")
