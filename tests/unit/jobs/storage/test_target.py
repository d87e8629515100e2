"""What SHARDYARD_STORAGE may say."""

import re
from pathlib import Path

import pytest

from jobs.storage.service import ServiceStorage
from jobs.storage.target import StorageKind, StorageTarget, open_remote, parse_target

#: Where a node keeps what it carries.
LOCAL = Path("/var/lib/shardyard/storage")


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("/srv/shardyard", StorageTarget(StorageKind.DIRECTORY, Path("/srv/shardyard"))),
        ("~/storage", StorageTarget(StorageKind.DIRECTORY, Path.home() / "storage")),
        ("./service", StorageTarget(StorageKind.DIRECTORY, Path("service"))),
        (" service ", StorageTarget(StorageKind.SERVICE, LOCAL, "service")),
        ("s3://bucket", StorageTarget(StorageKind.OBJECTS, LOCAL, "s3://bucket")),
        ("s3://my.bucket-1/a/b/", StorageTarget(StorageKind.OBJECTS, LOCAL, "s3://my.bucket-1/a/b")),
        ("s3:/bucket/x", StorageTarget(StorageKind.OBJECTS, LOCAL, "s3://bucket/x")),  # as a path has it
        ("file:///mnt/x", StorageTarget(StorageKind.MOUNT, LOCAL, "file:///mnt/x")),
        ("file:/mnt/x", StorageTarget(StorageKind.MOUNT, LOCAL, "file:///mnt/x")),
    ],
)
def test_storage_is_a_directory_the_service_or_a_bucket(text: str, target: StorageTarget) -> None:
    assert parse_target(text, LOCAL) == target
    assert target.is_carried == (target.kind is not StorageKind.DIRECTORY)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("https://train.example.org", "set SHARDYARD_URL"),
        ("gs://bucket/x", "may be a directory"),
        ("s3://", "is not a bucket name"),
        ("s3://Bucket/x", "is not a bucket name"),
        ("s3://bucket/a/../b", "no . or .."),
        ("s3://bucket/a//b", "no empty parts"),
    ],
)
def test_what_storage_cannot_be_says_what_it_could(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        parse_target(text, LOCAL)


def test_a_shared_directory_has_no_remote() -> None:
    assert open_remote(parse_target("/srv/shardyard", LOCAL), "", "") is None


def test_the_service_needs_its_address_and_a_token() -> None:
    target = parse_target("service", LOCAL)
    with pytest.raises(ValueError, match="needs SHARDYARD_URL and SHARDYARD_NODE_TOKEN"):
        open_remote(target, "", "")
    with pytest.raises(ValueError, match="begins with http"):
        open_remote(target, "train.example.org:8000", "t")
    with pytest.raises(ValueError, match="/nowhere"):
        open_remote(target, "https://train.example.org", "t", Path("/nowhere"))
    remote = open_remote(target, "https://train.example.org", "t")
    assert isinstance(remote, ServiceStorage)
    remote.close()
