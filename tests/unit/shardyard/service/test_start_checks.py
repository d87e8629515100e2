"""What `shardyard up` says when it cannot start."""

from pathlib import Path

import pytest

from shardyard.service.processes import ServiceError
from shardyard.service.service_logs import find_last_error
from shardyard.service.start_checks import check_devices, check_redis_url, make_data_directory, read_settings


def test_an_option_that_cannot_be_is_named_with_what_may_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServiceError, match=r"--pool \(SHARDYARD_POOL\) 'Bad!': use lower-case letters and digits"):
        read_settings(pool="Bad!")
    monkeypatch.setenv("SHARDYARD_RESERVE_BYTES", "much")
    with pytest.raises(ServiceError, match="SHARDYARD_RESERVE_BYTES 'much'"):
        read_settings()
    with pytest.raises(ServiceError, match="--devices: 'gpu9' names no devices; use auto"):
        check_devices("gpu9")
    with pytest.raises(ServiceError, match="--redis-url: http:// is not a Redis URL; use redis://"):
        check_redis_url("--redis-url", "http://here")
    check_redis_url("--redis-url", "rediss://here:6380/0")
    (tmp_path / "file").touch()
    with pytest.raises(
        ServiceError, match=r"cannot make the data directory .*: Not a directory\. Give another --data-dir"
    ):
        make_data_directory(tmp_path / "file" / "data")


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ('{"event": "started"}\n{"event": "cannot_start", "why": "there is no cuda:0"}\n', "there is no cuda:0"),
        ('{"event": "cannot_start", "error": "port in use"}\n', "port in use"),
        (
            'Traceback (most recent call last):\n  File "a.py", line 1\n    boom()\npkg.Wrong: one\n  two\n',
            "pkg.Wrong: one two",
        ),
        ("{ not json\n", "{ not json"),
        ("", ""),
    ],
)
def test_the_log_of_a_process_that_has_ended_is_told_in_one_line(tmp_path: Path, log: str, why: str) -> None:
    (tmp_path / "worker.log").write_text(log)
    assert find_last_error(tmp_path / "worker.log") == why
