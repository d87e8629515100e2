"""The proof that all parts of the service share one storage directory."""

import os
import threading
from pathlib import Path

import pytest

from jobs import store
from jobs.files.identity import NONCE_FILE, StorageMismatch, prove_storage
from jobs.store.client import RedisStore
from shardyard.contract.errors import FormatMismatch
from tests.support.servers.redis_server import running_redis


def test_the_first_to_start_marks_the_directory_and_others_find_the_mark(tmp_path: Path) -> None:
    with running_redis(tmp_path / "r") as url:
        control = RedisStore.from_url(url)
        prove_storage(control, tmp_path / "storage")
        prove_storage(control, tmp_path / "storage")
        assert (tmp_path / "storage" / NONCE_FILE).read_text()
        control.close()


@pytest.mark.parametrize("marked", [True, False])
def test_another_directory_is_refused(tmp_path: Path, marked: bool) -> None:
    with running_redis(tmp_path / "r") as url:
        control = RedisStore.from_url(url)
        prove_storage(control, tmp_path / "storage")
        other = tmp_path / "other"
        other.mkdir()
        if marked:
            (other / NONCE_FILE).write_text("of another service")
        with pytest.raises(StorageMismatch, match="SHARDYARD_STORAGE"):
            prove_storage(control, other)
        control.close()


def test_keys_of_a_format_that_is_not_known_here_are_left_alone(tmp_path: Path) -> None:
    with running_redis(tmp_path / "r") as url:
        control = RedisStore.from_url(url)
        prove_storage(control, tmp_path / "storage")
        assert control.client.get("sy:format") == store.FORMAT.encode()
        control.client.set("sy:format", "2")
        before = control.client.dbsize()
        with pytest.raises(FormatMismatch, match="keys of format 2, and this version of the service knows 1"):
            prove_storage(control, tmp_path / "storage")
        assert control.client.dbsize() == before
        control.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_another_user_is_refused_who_could_not_read_what_is_kept(tmp_path: Path) -> None:
    with running_redis(tmp_path / "r") as url:
        control = RedisStore.from_url(url)
        prove_storage(control, tmp_path / "storage")
        os.chown(tmp_path / "storage" / NONCE_FILE, 20_000, 20_000)
        with pytest.raises(StorageMismatch, match="belong to user 20000, and this process runs as user 0"):
            prove_storage(control, tmp_path / "storage")
        control.close()


def test_a_redis_that_lost_everything_takes_the_mark_that_is_there(tmp_path: Path) -> None:
    with running_redis(tmp_path / "r") as url:
        control = RedisStore.from_url(url)
        prove_storage(control, tmp_path / "storage")
        mark = (tmp_path / "storage" / NONCE_FILE).read_text()
        control.client.flushall()
        prove_storage(control, tmp_path / "storage")
        assert (tmp_path / "storage" / NONCE_FILE).read_text() == mark
        control.close()


def test_many_that_start_at_once_agree(tmp_path: Path) -> None:
    with running_redis(tmp_path / "r") as url:
        barrier, refused = threading.Barrier(8), []

        def start() -> None:
            control = RedisStore.from_url(url)
            barrier.wait(60)
            try:
                prove_storage(control, tmp_path / "storage")
            except StorageMismatch as error:
                refused.append(error)
            control.close()

        threads = [threading.Thread(target=start) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert refused == []
