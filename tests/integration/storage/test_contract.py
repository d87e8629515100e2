"""What every remote storage does: the same tests on a directory, on the API, and on buckets of real S3 servers."""

import hashlib
import os
import random
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest

from benchmarks.harness.s3 import variables_of
from jobs.storage.directory import DirectoryStorage
from jobs.storage.objects import ObjectStorage
from jobs.storage.remote import (
    CHUNK_BYTES,
    MAX_NAME_BYTES,
    DigestMismatch,
    OffsetMismatch,
    RemoteStorage,
    UnknownFile,
    digest_file,
    fetch_file,
)
from tests.integration.storage.conftest import ServedNode
from tests.support.servers.s3_server import MOTO, SEAWEEDFS, s3_bucket

pytestmark = pytest.mark.integration
LOG = "jobs/default/0a/1/logs/device-0.log"
ODD_NAMES = ["a b", "%2e%2e", "#?&=", "ä中\N{OK HAND SIGN}", "'\"\\", ".hidden", "x" * MAX_NAME_BYTES]
ODD_NAMES += ["ends with\n", "..\\..\\up", "down\\..", ".\\", "a\nb\t\x01\x7f", "\uf0255c", "...", " "]
BUCKET, SERVERS = "storage", [MOTO, SEAWEEDFS]
REFUSED = ["", "/", "/etc/passwd", "a/../b", "../a", "a//b", "a/./b", "a/", "a\0b", "x" * 256, "a/" * 100 + "a"]


@pytest.fixture(scope="session", params=SERVERS)
def s3_server(request: pytest.FixtureRequest) -> str:
    return _url_of(request, request.param)


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_bucket(tmp_path_factory.mktemp("moto"), BUCKET, MOTO) as url:
        yield url


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_bucket(tmp_path_factory.mktemp("seaweedfs"), BUCKET, SEAWEEDFS) as url:
        yield url


def _url_of(request: pytest.FixtureRequest, server: str) -> str:
    url: str = request.getfixturevalue(server)
    return url


def _bucket(url: str) -> ObjectStorage:
    """A prefix of a test's own."""
    named: Any = {name.removeprefix("AWS_").lower(): value for name, value in variables_of(url).items()}
    return ObjectStorage(f"s3://{BUCKET}/{uuid.uuid4().hex}", **named, virtual_hosted_style_request=False)


@pytest.fixture(params=["directory", "service", *SERVERS])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> RemoteStorage:
    if request.param == "service":
        served: ServedNode = request.getfixturevalue("served_node")
        return served.storage()
    if request.param == "directory":
        (tmp_path / "root").mkdir()
        return DirectoryStorage(tmp_path / "root")
    return _bucket(_url_of(request, request.param))


def made(tmp_path: Path, data: bytes) -> tuple[Path, str]:
    file = tmp_path / uuid.uuid4().hex
    file.write_bytes(data)
    return file, digest_file(file)


def whole(remote: RemoteStorage, path: str) -> bytes:
    found = b""
    while data := remote.read(path, len(found), CHUNK_BYTES):
        found += data
    return found


def test_what_is_appended_is_read_as_one_file(remote: RemoteStorage) -> None:
    parts = [b"one", b"", b"two", b"\0\xff" * 1000]
    size = 0
    for part in parts:
        remote.append(LOG, size, part)
        size += len(part)
    assert whole(remote, LOG) == b"".join(parts)
    assert remote.size(LOG) == size
    assert remote.read(LOG, 2, 3) == b"etw"
    assert remote.read(LOG, size, 10) == remote.read(LOG, size + 5, 10) == b""


def test_an_append_that_is_repeated_whole_or_with_more_is_there_once(remote: RemoteStorage) -> None:
    text = bytes(random.Random(1).randbytes(5000))
    for cut in (0, 1, 100, 4999, 5000):
        remote.append(LOG, 0, text[:cut])
        remote.append(LOG, 0, text[:cut])
    remote.append(LOG, 4000, text[4000:] + b"more")
    assert whole(remote, LOG) == text + b"more"


@pytest.mark.parametrize(("offset", "data"), [(4, b"x"), (0, b"abd"), (1, b"bX"), (2, b"X"), (9, b"")])
def test_an_append_that_does_not_fit_changes_nothing_and_says_where_the_file_ends(
    remote: RemoteStorage, offset: int, data: bytes
) -> None:
    remote.append(LOG, 0, b"abc")
    with pytest.raises(OffsetMismatch) as refused:
        remote.append(LOG, offset, data)
    assert refused.value.size == 3
    assert whole(remote, LOG) == b"abc"


def test_another_process_goes_on_where_one_has_stopped(remote: RemoteStorage) -> None:
    remote.append(LOG, 0, b"abc")
    other = _same_bucket(remote) if isinstance(remote, ObjectStorage) else remote
    other.append(LOG, 3, b"def")
    assert whole(remote, LOG) == b"abcdef"


def _same_bucket(remote: ObjectStorage) -> ObjectStorage:
    other = ObjectStorage.__new__(ObjectStorage)
    other.__dict__.update(remote.__dict__ | {"_rows": type(remote._rows)(), "_lock": threading.Lock()})
    return other


def test_a_file_is_put_whole_and_replaces_what_was_there(remote: RemoteStorage, tmp_path: Path) -> None:
    for data in (b"", b"small", os.urandom(CHUNK_BYTES + 17), b"last"):
        remote.put("jobs/default/0a/1/report.json", *made(tmp_path, data))
        assert whole(remote, "jobs/default/0a/1/report.json") == data
        assert remote.size("jobs/default/0a/1/report.json") == len(data)


def test_a_file_that_was_appended_to_is_put_whole_at_its_end(remote: RemoteStorage, tmp_path: Path) -> None:
    remote.append(LOG, 0, b"abc")
    remote.append(LOG, 3, b"def")
    remote.put(LOG, *made(tmp_path, b"abcdefg"))
    assert whole(remote, LOG) == b"abcdefg"
    assert remote.names("jobs") == [LOG]


def test_a_file_that_is_not_what_its_digest_says_is_not_stored(remote: RemoteStorage, tmp_path: Path) -> None:
    file, _ = made(tmp_path, b"data")
    with pytest.raises(DigestMismatch):
        remote.put("a/b", file, hashlib.sha256(b"other").hexdigest())
    assert remote.size("a/b") is None
    assert remote.names("a") == []


def test_a_file_is_copied_under_another_path_in_the_place_of_what_was_there(
    remote: RemoteStorage, tmp_path: Path
) -> None:
    data = os.urandom(CHUNK_BYTES + 17)
    file, digest = made(tmp_path, data)
    remote.put("a/checkpoints/model", file, digest)
    remote.append("a/files/model", 0, b"an older one")
    for source, path in (("checkpoints/model", "files/model"), ("files/model", f"files/{ODD_NAMES[7]}")):
        remote.copy(f"a/{source}", f"a/{path}", len(data), digest)
        assert whole(remote, f"a/{path}") == data
    remote.remove("a/checkpoints/model")
    assert remote.names("a") == ["a/files/ends with\n", "a/files/model"]
    assert whole(remote, "a/files/model") == data


@pytest.mark.parametrize("other", [b"", b"other", b"longer than that"])
def test_what_is_not_the_file_that_was_meant_is_not_copied(remote: RemoteStorage, tmp_path: Path, other: bytes) -> None:
    _, digest = made(tmp_path, b"model")
    if other:
        remote.put("a/model", *made(tmp_path, other))
    else:
        remote.append("a/model", 0, b"model")
        remote.remove("a/model")
    remote.put("a/copy", *made(tmp_path, b"as it was"))
    with pytest.raises((UnknownFile, DigestMismatch)):
        remote.copy("a/model", "a/copy", 5, digest)
    assert whole(remote, "a/copy") == b"as it was"


def test_files_have_any_name(remote: RemoteStorage, tmp_path: Path) -> None:
    for name in ODD_NAMES:
        remote.put(f"files/{name}", *made(tmp_path, name.encode()))
        remote.append(f"logs/{name}", 0, name.encode())
    assert remote.names("files") == sorted(f"files/{name}" for name in ODD_NAMES)
    for name in ODD_NAMES:
        assert whole(remote, f"files/{name}") == whole(remote, f"logs/{name}") == name.encode()


@pytest.mark.parametrize("path", REFUSED)
def test_what_is_no_path_below_the_root_is_refused_by_every_call(
    remote: RemoteStorage, path: str, tmp_path: Path
) -> None:
    file, digest = made(tmp_path, b"x")
    calls: list[Callable[[], object]] = [
        lambda: remote.append(path, 0, b"x"),
        lambda: remote.put(path, file, digest),
        lambda: remote.copy(path, "a/b", 1, digest),
        lambda: remote.copy("a/b", path, 1, digest),
        lambda: remote.size(path),
        lambda: remote.read(path, 0, 1),
        lambda: remote.names(path),
        lambda: remote.remove(path),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"storage's root|a path may have"):
            call()


def test_what_is_not_there_has_no_size_no_bytes_and_no_names(remote: RemoteStorage) -> None:
    assert remote.size("a/b") is None
    with pytest.raises(UnknownFile):
        remote.read("a/b", 0, 1)
    assert remote.names("a") == []
    remote.remove("a")


def test_a_directory_is_removed_with_all_in_it_and_its_neighbours_stay(remote: RemoteStorage, tmp_path: Path) -> None:
    remote.append("jobs/a/1/log", 0, b"x")
    remote.put("jobs/a/1/deep/er/file", *made(tmp_path, b"x"))
    remote.put("jobs/ab", *made(tmp_path, b"x"))
    remote.remove("jobs/a")
    assert remote.names("jobs") == ["jobs/ab"]
    assert remote.size("jobs/a/1/log") is None
    remote.append("jobs/a/1/log", 0, b"anew")
    assert whole(remote, "jobs/a/1/log") == b"anew"


def test_more_than_a_chunk_is_not_appended_at_once(remote: RemoteStorage) -> None:
    with pytest.raises(ValueError, match="at most"):
        remote.append(LOG, 0, bytes(CHUNK_BYTES + 1))


def test_files_that_are_put_at_once_are_each_one_of_them(remote: RemoteStorage, tmp_path: Path) -> None:
    bodies = [bytes([number]) * 100_000 for number in range(8)]
    threads = [threading.Thread(target=lambda body=body: remote.put("a/b", *made(tmp_path, body))) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert whole(remote, "a/b") in bodies
    assert remote.names("a") == ["a/b"]


def test_a_file_is_fetched_from_where_an_earlier_call_was_cut(remote: RemoteStorage, tmp_path: Path) -> None:
    data = os.urandom(100_000)
    remote.put("a/b", *made(tmp_path, data))
    (tmp_path / ".here.fetched").write_bytes(data[:12_345])
    fetch_file(remote, "a/b", tmp_path / "here")
    assert (tmp_path / "here").read_bytes() == data
    assert not (tmp_path / ".here.fetched").exists()


def test_a_directory_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret")
    (tmp_path / "root" / "out").symlink_to(tmp_path / "outside")
    (tmp_path / "root" / "file").symlink_to(tmp_path / "outside" / "secret")
    remote = DirectoryStorage(tmp_path / "root")
    for path in ("out/secret", "file"):
        with pytest.raises(UnknownFile):
            remote.read(path, 0, 10)
        assert remote.size(path) is None
    for path in ("out/new", "file"):
        with pytest.raises(UnknownFile):
            remote.append(path, 0, b"x")
    assert (tmp_path / "outside" / "secret").read_text() == "secret"
    assert list((tmp_path / "outside").iterdir()) == [tmp_path / "outside" / "secret"]


def test_a_name_that_no_key_is_was_one_before(s3_server: str) -> None:
    remote = _bucket(s3_server)
    obstore.put(remote._store, "files/back\\slash", b"as 0.2.0 did")
    assert whole(remote, "files/back\\slash") == b"as 0.2.0 did"
    found = remote.find("files/back\\slash")
    assert found is not None
    assert remote.read_range("files/back\\slash", 3, 8, found.tag) == b"0.2.0"
    with pytest.raises(UnknownFile):
        remote.read("files/an\\other\n", 0, 1)


# -- rows of segments, which only a bucket has --------------------------------------------------------


def test_a_file_of_many_small_appends_is_few_objects_and_the_same_bytes(s3_server: str) -> None:
    remote = _bucket(s3_server)
    reader = _again(remote)
    text = random.Random(3).randbytes(40_000)
    for begins in range(0, len(text), 200):
        remote.append(LOG, begins, text[begins : begins + 200])
        if begins % 5000 == 0:
            assert whole(reader, LOG) == b"".join(reader.read_parts(LOG)) == text[: begins + 200]
    assert len(list(remote._listed(f"{LOG}/.segments/"))) < 80
    assert [(one.path, one.bytes) for one in remote.list_files("jobs")] == [(LOG, len(text))]
    assert b"".join(reader.read_parts(LOG, 12_345)) == text[12_345:]


def test_what_a_crash_has_left_of_joined_segments_is_no_part_of_the_file(s3_server: str) -> None:
    remote = _bucket(s3_server)
    remote.append(LOG, 0, b"0123456789")
    obstore.put(remote._store, f"{LOG}/.segments/{3:020}", b"3456")  # joined to the first one, and not removed
    assert whole(_again(remote), LOG) == b"0123456789"
    _again(remote).append(LOG, 10, b"ab")
    assert b"".join(remote.read_parts(LOG)) == b"0123456789ab"
    assert [(one.path, one.bytes) for one in remote.list_files("jobs")] == [(LOG, 12)]
    assert remote.names("jobs") == [LOG]


def test_an_object_without_its_digest_is_not_copied(s3_server: str) -> None:
    """As earlier versions, and other tools, have put it."""
    remote = _bucket(s3_server)
    obstore.put(remote._store, "a/model", b"model")
    with pytest.raises(DigestMismatch):
        remote.copy("a/model", "a/copy", 5, hashlib.sha256(b"model").hexdigest())
    assert remote.names("a") == ["a/model"]


def test_two_that_begin_one_file_do_not_mix(s3_server: str) -> None:
    remote = _bucket(s3_server)
    other = _again(remote)
    assert remote.size(LOG) is other.size(LOG) is None
    remote.append(LOG, 0, b"mine")
    with pytest.raises(OffsetMismatch):
        other.append(LOG, 0, b"theirs")
    assert whole(other, LOG) == b"mine"


def _again(remote: ObjectStorage) -> ObjectStorage:
    """As another process has it."""
    copy = ObjectStorage.__new__(ObjectStorage)
    copy.__dict__.update(remote.__dict__ | {"_rows": OrderedDict()})
    return copy
