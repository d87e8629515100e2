"""The volumes of a composed service: who may read what in them, from the first start and after an upgrade."""

import importlib.util
import os
import stat
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

VOLUMES = ("control", "telemetry", "settings", "admin", "keys", "storage")


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, on volumes of an earlier version: all of them had the servers' account."""
    source = Path(__file__).parents[3] / "deploy" / "prepare.py"
    spec = importlib.util.spec_from_file_location("prepare", source)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setattr(program, "ROOT", tmp_path)
    monkeypatch.setattr(os, "umask", lambda _: 0o077)  # that of this process stays
    for volume in VOLUMES:
        (tmp_path / volume).mkdir(mode=0o700)
    (tmp_path / "admin" / "token").write_text("the old one\n")
    os.symlink("/etc/passwd", tmp_path / "storage" / "link")
    (tmp_path / "storage" / "report.json").write_text("{}")
    for path in [*tmp_path.glob("*"), *tmp_path.glob("*/*")]:
        os.chown(path, program.SERVER_ACCOUNT, program.SERVER_ACCOUNT, follow_symlinks=False)
    return program


def owners(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.lstat().st_uid for path in [*root.glob("*"), *root.glob("*/*")]}


def test_servers_keep_their_account_and_all_else_is_roots(prepare: ModuleType, tmp_path: Path) -> None:
    passwd = os.stat("/etc/passwd")
    for _ in range(2):  # it runs before every start
        prepare.main()
        theirs = {name for name, owner in owners(tmp_path).items() if owner == prepare.SERVER_ACCOUNT}
        servers = {"control", "telemetry"}
        assert theirs == servers | {f"{name}/{file}" for name in servers for file in ("password", "users.acl")}
        assert set(owners(tmp_path).values()) == {0, prepare.SERVER_ACCOUNT}
    assert os.stat("/etc/passwd").st_uid == passwd.st_uid
    assert (tmp_path / "admin" / "token").read_text() == "the old one\n"


def test_what_was_made_once_is_kept_and_the_urls_have_the_passwords(prepare: ModuleType, tmp_path: Path) -> None:
    prepare.main()
    password = (tmp_path / "control" / "password").read_text()
    prepare.main()
    assert (tmp_path / "control" / "password").read_text() == password
    assert password.strip() in (tmp_path / "settings" / "SHARDYARD_REDIS_URL").read_text()
    assert password.strip() not in (tmp_path / "settings" / "SHARDYARD_TELEMETRY_URL").read_text()


def test_storage_of_this_version_is_not_gone_through_again(prepare: ModuleType, tmp_path: Path) -> None:
    prepare.main()
    job = tmp_path / "storage" / "of-an-account"
    job.touch()
    os.chown(job, 40_000, 40_000)
    prepare.main()
    assert job.stat().st_uid == 40_000
    assert stat.S_IMODE((tmp_path / "storage").stat().st_mode) == 0o700
