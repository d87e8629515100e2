"""The copy of a file of frames that grows: the same bytes as on the node, up to some frame.

One thread at a time extends it. Readers look no further than the last whole frame, so they may read meanwhile.
"""

import os
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from jobs.files.frame_file import Frame, FrameKind, FrameReader
from jobs.support import fs


class ForeignBytes(Exception):
    """What was added does not follow what the copy has: it is of another file."""


class GrowingCopy:
    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        self.path = path
        self.last: Frame | None = None
        try:
            with FrameReader(path) as reader:
                self.last = reader.last()
        except FileNotFoundError:
            return

    @property
    def end(self) -> int:
        """Bytes of whole frames."""
        return 0 if self.last is None else self.last.end

    @property
    def is_sealed(self) -> bool:
        return self.last is not None and self.last.kind == FrameKind.SEAL

    def add_frames(self, frames: Iterable[tuple[Frame, bytes]]) -> int:
        """Append frames that follow the last one; how many bytes that were. Raises OSError."""
        found = list(frames)
        data = b"".join(raw for _, raw in found)
        if data:
            begin = self._write(self.end, [data])
            self.last = found[-1][0]._replace(offset=begin + len(data) - len(found[-1][1]))
        return len(data)

    def add_bytes(self, parts: Iterable[bytes]) -> int:
        """Append what the bucket has from `end` on; how many bytes of whole frames that were.

        Raises:
            ForeignBytes: that is no frame which follows the last one.
            OSError: the disk refuses.
        """
        begin, last = self._write(self.end, parts), self.last
        with FrameReader(self.path) as reader:
            following = reader.frame_at(begin)
            if following is not None and following.number != (0 if last is None else last.number) + 1:
                raise ForeignBytes
            for frame in reader.forward(following):
                self.last = frame
        return self.end - begin

    def _write(self, begin: int, parts: Iterable[bytes]) -> int:
        """Write from a place on, and cut off what lies beyond. Returns `begin`."""
        coming = iter(parts)
        first = next(coming, b"")  # before a file is made for what is not there
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            offset = begin
            for part in chain((first,), coming):
                fs.write_at(file, part, offset)
                offset += len(part)
            if os.fstat(file).st_size > offset:
                os.ftruncate(file, offset)
        finally:
            os.close(file)
        return begin
