"""Where `shardyard login` keeps its tokens."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shardyard.client.logins import LOGINS_FILE, StoredLogin, read_login, remove_login, store_login

LATER = datetime.now(UTC) + timedelta(hours=1)


def test_each_service_has_a_login_of_its_own(tmp_path: Path) -> None:
    for url in ("https://one", "https://two/"):
        store_login(tmp_path, url, StoredLogin(f"token of {url}", LATER))
    assert read_login(tmp_path, "https://one/") == StoredLogin("token of https://one", LATER)
    assert remove_login(tmp_path, "https://one")
    assert not remove_login(tmp_path, "https://one")
    assert read_login(tmp_path, "https://one") is None
    assert read_login(tmp_path, "https://two") is not None


def test_the_file_is_closed_to_others_also_where_an_older_one_was_open(tmp_path: Path) -> None:
    directory = tmp_path / "new"
    path = store_login(directory, "https://one", StoredLogin("t"))
    path.chmod(0o644)
    store_login(directory, "https://one", StoredLogin("u"))
    assert path.stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in directory.iterdir()] == [LOGINS_FILE]


def test_a_login_that_has_expired_is_none_and_goes_with_the_next(tmp_path: Path) -> None:
    store_login(tmp_path, "https://one", StoredLogin("t", datetime.now(UTC)))
    assert read_login(tmp_path, "https://one") is None
    path = store_login(tmp_path, "https://two", StoredLogin("t", LATER))
    assert "https://one" not in path.read_text()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"https://one": 1}', '{"https://one": {"token": 1}}'])
def test_a_file_that_cannot_be_read_is_no_login(tmp_path: Path, text: str) -> None:
    (tmp_path / LOGINS_FILE).write_text(text)
    assert read_login(tmp_path, "https://one") is None


def test_a_login_does_not_show_its_token() -> None:
    assert "s3cret" not in repr(StoredLogin("s3cret"))
