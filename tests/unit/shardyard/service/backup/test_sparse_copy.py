import hashlib
import os
from pathlib import Path

import pytest

from shardyard.service.backup.sparse_copy import (
    WINDOW_BYTES,
    CopiedContents,
    SourceUnreadable,
    copy_contents,
    is_sparse,
)


def copy(source: Path, target: Path, *, sparse: bool, size: int | None = None) -> CopiedContents:
    with source.open("rb") as reader, target.open("wb") as writer:
        length = source.stat().st_size if size is None else size
        return copy_contents(reader.fileno(), writer.fileno(), length, sparse=sparse)


def a_file(path: Path, *parts: tuple[int, bytes], size: int = 0) -> Path:
    """With bytes at some places, and holes between them."""
    with path.open("wb") as file:
        for place, body in parts:
            file.seek(place)
            file.write(body)
        file.truncate(max(size, file.tell()))
    return path


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 4097, WINDOW_BYTES, WINDOW_BYTES + 1, 3 * WINDOW_BYTES - 5])
def test_a_plain_file_has_its_usual_hash(tmp_path: Path, length: int) -> None:
    body = bytes(range(1, 256)) * (length // 255 + 1)
    source = a_file(tmp_path / "source", (0, body[:length]))
    copied = copy(source, tmp_path / "target", sparse=False)
    assert copied == CopiedContents(length, length, hashlib.sha256(body[:length]).hexdigest())
    assert (tmp_path / "target").read_bytes() == body[:length]


def test_a_file_of_ten_gigabytes_of_holes_costs_what_is_in_it(tmp_path: Path) -> None:
    source = a_file(tmp_path / "source", (5 << 30, b"middle"), ((7 << 30) - 3, b"across"), size=10 << 30)
    assert is_sparse(source.stat())
    copied = copy(source, tmp_path / "target", sparse=True)
    found = (tmp_path / "target").stat()
    assert (copied.bytes, found.st_size) == (10 << 30, 10 << 30)
    assert copied.stored <= 4 * 4096
    assert found.st_blocks * 512 < 100_000
    with (tmp_path / "target").open("rb") as file:
        for place, body in ((5 << 30, b"middle"), ((7 << 30) - 3, b"across")):
            file.seek(place)
            assert file.read(6) == body


def test_a_sparse_file_has_one_hash_wherever_its_holes_are(tmp_path: Path) -> None:
    parts = ((0, b"a" * 5000), (WINDOW_BYTES - 2, b"bcde"), (7 * WINDOW_BYTES + 12_288, b"f"))
    holes = a_file(tmp_path / "holes", *parts, size=9 * WINDOW_BYTES)
    filled = tmp_path / "filled"
    filled.write_bytes(holes.read_bytes())
    assert holes.stat().st_blocks < filled.stat().st_blocks
    copies = [copy(source, tmp_path / "target", sparse=True) for source in (holes, filled)]
    assert copies[0] == copies[1]
    assert (tmp_path / "target").read_bytes() == holes.read_bytes()
    assert not is_sparse(filled.stat())
    assert is_sparse((tmp_path / "target").stat()), "zeros become holes"


@pytest.mark.parametrize(
    "other",
    [
        ((0, b"a"), (8192, b"b")),
        ((0, b"a"), (4096, b"c")),
        ((1, b"a"), (4096, b"b")),
        ((0, b"a"), (4096, b"b"), (3 * WINDOW_BYTES, b"\1")),
    ],
)
def test_another_file_has_another_hash(tmp_path: Path, other: tuple[tuple[int, bytes], ...]) -> None:
    size = 4 * WINDOW_BYTES
    one = a_file(tmp_path / "one", (0, b"a"), (4096, b"b"), size=size)
    hashes = {
        copy(source, tmp_path / "target", sparse=True).sha256
        for source in (one, a_file(tmp_path / "two", *other, size=size))
    }
    assert len(hashes) == 2
    longer = a_file(tmp_path / "longer", (0, b"a"), (4096, b"b"), size=size + 1)
    assert copy(longer, tmp_path / "target", sparse=True).sha256 not in hashes


@pytest.mark.parametrize("sparse", [False, True])
def test_a_file_that_became_shorter_is_copied_as_far_as_it_goes(tmp_path: Path, sparse: bool) -> None:
    source = a_file(tmp_path / "source", (0, b"x" * 5000))
    copied = copy(source, tmp_path / "target", sparse=sparse, size=3 * WINDOW_BYTES)
    assert copied.bytes == 5000
    assert (tmp_path / "target").read_bytes() == b"x" * 5000


@pytest.mark.parametrize("sparse", [False, True])
def test_what_was_appended_meanwhile_is_not_copied(tmp_path: Path, sparse: bool) -> None:
    source = a_file(tmp_path / "source", (0, b"x" * 5000))
    assert copy(source, tmp_path / "target", sparse=sparse, size=4000).bytes == 4000
    assert (tmp_path / "target").stat().st_size == 4000


def test_what_cannot_be_read_is_told_apart_from_what_cannot_be_written(tmp_path: Path) -> None:
    source = a_file(tmp_path / "source", (0, b"x"))
    with source.open("rb") as reader, (tmp_path / "target").open("wb") as writer:
        with pytest.raises(SourceUnreadable, match="descriptor"):
            copy_contents(writer.fileno(), writer.fileno(), 1, sparse=False)
        with pytest.raises(OSError, match="descriptor"):
            copy_contents(reader.fileno(), reader.fileno(), 1, sparse=False)


def test_a_copy_may_be_given_up_between_two_pieces(tmp_path: Path) -> None:
    source = a_file(tmp_path / "source", (0, b"x" * (2 * WINDOW_BYTES)))
    seen = []

    def check() -> None:
        seen.append(os.stat(tmp_path / "target").st_size)
        if len(seen) == 2:
            raise TimeoutError

    with source.open("rb") as reader, (tmp_path / "target").open("wb") as writer, pytest.raises(TimeoutError):
        copy_contents(reader.fileno(), writer.fileno(), 2 * WINDOW_BYTES, sparse=False, check=check)
    assert seen == [0, WINDOW_BYTES]
