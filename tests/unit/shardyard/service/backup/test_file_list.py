import io
import os
from pathlib import Path

import msgspec
import pytest
import zstandard

from shardyard.service.backup.file_list import (
    EnteredDirectory,
    FileContents,
    FileListWriter,
    LeftDirectories,
    ListDamaged,
    SharedFile,
    StoredFile,
    StoredLink,
    WalkStep,
    list_paths,
    quote_name,
    read_file_list,
    unquote_name,
)
from shardyard.service.backup.small_files import BackedUpFile


@pytest.mark.parametrize(
    "name", [b"plain.txt", b"\xff\xfe", b"two\nlines", "größe".encode(), b"%41", b'{"do":1}', b" "]
)
def test_any_name_of_a_file_comes_back_as_it_was(name: bytes) -> None:
    quoted = quote_name(os.fsdecode(name))
    assert quoted.isascii()
    assert quoted.isprintable()
    assert os.fsencode(unquote_name(quoted)) == name


@pytest.mark.parametrize("quoted", ["", ".", "..", "%2e%2e", "a%2Fb", "a/b", "%00", "a" * 256])
def test_a_name_that_would_lead_elsewhere_is_refused(quoted: str) -> None:
    with pytest.raises(ListDamaged, match="not the name of a file"):
        unquote_name(quoted)


def test_a_list_is_read_as_it_was_written(tmp_path: Path) -> None:
    contents = FileContents(bytes=3, sha256="0" * 64, mode=0o640, modified_ns=12, sparse=True)
    steps: list[WalkStep] = [
        EnteredDirectory("jobs", 0o700),
        StoredFile("a", contents),
        SharedFile(1, contents),
        StoredLink("b", 1),
        LeftDirectories(),
    ]
    with FileListWriter(tmp_path / "list") as writer:
        for step in steps:
            writer.add(step)
    assert writer.written.bytes == (tmp_path / "list").stat().st_size
    with (tmp_path / "list").open("rb") as file:
        assert list(read_file_list(file)) == steps
    assert (tmp_path / "list").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"do":"other"}', b'{"do":"enter"}', b"x" * 20_000])
def test_a_damaged_list_is_said_to_be(line: bytes) -> None:
    with pytest.raises(ListDamaged):
        list(read_file_list(io.BytesIO(zstandard.compress(line + b"\n"))))
    with pytest.raises(ListDamaged):
        list(read_file_list(io.BytesIO(line)))


def test_paths_become_a_walk_that_enters_each_directory_once() -> None:
    file = BackedUpFile(1, "0" * 64)
    paths = [("jobs", "a", "1", "x"), ("jobs", "a", "1", "y"), ("jobs", "b", "z"), ("top",)]
    steps = msgspec.to_builtins(list(list_paths(dict.fromkeys(paths, file))))
    assert [step.get("name") or step.get("levels", 1) for step in steps] == (
        ["jobs", "a", "1", "x", "y", 2, "b", "z", 2, "top"]
    )
