"""The volumes of a composed service: who may read what in them, from the first start and after an upgrade."""

import importlib.util
import os
import stat
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")

VOLUMES = ("control", "telemetry", "settings", "admin", "keys", "storage")
ROOT_ACCOUNT, ATTEMPT = 0, 40_000


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program, on volumes of an earlier version: all but the servers' were root's."""
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
    for volume in ("control", "telemetry"):
        os.chown(tmp_path / volume, program.SERVER_ACCOUNT, program.SERVER_ACCOUNT)
    return program


def use_storage(storage: Path) -> None:
    """What jobs of the earlier version have left there, one of them in the middle of an attempt."""
    os.symlink("/etc/passwd", storage / "link")
    (storage / "report.json").write_text("{}")
    (storage / "of-an-attempt").touch()
    os.chown(storage / "of-an-attempt", ATTEMPT, ATTEMPT)


def owners(root: Path) -> set[int]:
    return {path.lstat().st_uid for path in [*root.glob("*"), *root.glob("*/*")]}


def test_everything_is_the_apis_and_the_servers(prepare: ModuleType, tmp_path: Path) -> None:
    passwd = os.stat("/etc/passwd")
    use_storage(tmp_path / "storage")
    for _ in range(2):  # it runs before every start
        prepare.main()
        assert owners(tmp_path) == {prepare.SERVER_ACCOUNT}
    assert os.stat("/etc/passwd").st_uid == passwd.st_uid
    assert (tmp_path / "admin" / "token").read_text() == "the old one\n"


def test_an_api_that_is_root_has_its_volumes_and_gets_them_back(prepare: ModuleType, tmp_path: Path) -> None:
    use_storage(tmp_path / "storage")
    prepare.main(ROOT_ACCOUNT)
    assert owners(tmp_path / "storage") == {ROOT_ACCOUNT, ATTEMPT}
    prepare.main()
    prepare.main(ROOT_ACCOUNT)
    for volume in ("settings", "admin", "keys", "storage"):
        assert owners(tmp_path / volume) == {ROOT_ACCOUNT}
    assert owners(tmp_path / "control") == {prepare.SERVER_ACCOUNT}


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
    os.chown(job, ATTEMPT, ATTEMPT)
    prepare.main()
    assert job.stat().st_uid == ATTEMPT
    assert stat.S_IMODE((tmp_path / "storage").stat().st_mode) == 0o700
