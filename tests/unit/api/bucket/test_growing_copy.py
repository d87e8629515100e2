"""A copy of a log becomes what the log is, from whichever of the two sources its frames come."""

import random
from pathlib import Path

import pytest

from api.bucket.growing_copy import ForeignBytes, GrowingCopy
from jobs.files.frame_file import Frame, FrameDraft, FrameKind, FrameReader, FrameWriter, parse_frame


def a_log(path: Path, frames: int, seed: int = 0) -> bytes:
    writer, numbers = FrameWriter(path), random.Random(seed)
    for item in range(1, frames + 1):
        payload = numbers.randbytes(numbers.randrange(1, 400))
        writer.append(FrameDraft(FrameKind.DATA, item, item, -1, -1, payload))
    writer.append(FrameDraft(FrameKind.SEAL, frames + 1, frames + 1, -1, -1, b""))
    writer.close()
    return path.read_bytes()


def frames_of(path: Path) -> list[tuple[Frame, bytes]]:
    """As a stream has them: each by itself."""
    with FrameReader(path) as reader:
        return [(parse_frame(reader.raw(frame))[0], reader.raw(frame)) for frame in reader.forward(reader.first())]


@pytest.mark.parametrize("seed", range(20))
def test_frames_and_bytes_in_any_turn_make_the_same_file(tmp_path: Path, seed: int) -> None:
    body = a_log(tmp_path / "log", 40, seed)
    frames, numbers = frames_of(tmp_path / "log"), random.Random(seed)
    path = tmp_path / "copies" / "log"
    while not GrowingCopy(path).is_sealed:
        copy = GrowingCopy(path)
        number = 0 if copy.last is None else copy.last.number
        if numbers.random() < 0.5:
            copy.add_frames(frames[number : number + numbers.randrange(1, 8)])
        else:  # a row of segments ends anywhere
            end = min(len(body), copy.end + numbers.randrange(1, 3000))
            copy.add_bytes([body[copy.end : end][:500], body[copy.end : end][500:]])
        assert copy.last == GrowingCopy(path).last
    assert path.read_bytes() == body


def test_bytes_of_another_file_are_not_added(tmp_path: Path) -> None:
    body = a_log(tmp_path / "log", 10)
    copy = GrowingCopy(tmp_path / "copy")
    copy.add_frames(frames_of(tmp_path / "log")[:3])
    with pytest.raises(ForeignBytes):
        copy.add_bytes([body])


def test_a_file_that_is_not_there_makes_no_copy(tmp_path: Path) -> None:
    def missing() -> "list[bytes]":
        raise FileNotFoundError

    copy = GrowingCopy(tmp_path / "copy")
    with pytest.raises(FileNotFoundError):
        copy.add_bytes(part for part in missing())
    assert copy.add_frames([]) == 0
    assert not (tmp_path / "copy").exists()
