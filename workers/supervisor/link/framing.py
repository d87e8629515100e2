"""Frames of a link: payloads that nobody without the keys of the connection can add, change, repeat or reorder.

    length of the payload   u32, big endian
    tag of the length       16 bytes
    payload
    tag of the payload      16 bytes

A tag is an HMAC-SHA256, cut to 16 bytes, over the number of the tag and what it covers. Each direction has a key of its
own and counts its tags from 0. The length has a tag, so that no reader waits for bytes that nobody sends.
"""

import hmac
import struct
from collections.abc import Iterator

#: Largest payload. A longer one is not sent, and closes the link of whoever receives it.
MAX_FRAME_BYTES = 4 * 1024 * 1024

TAG_BYTES = 16
_LENGTH = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_HEADER_BYTES = _LENGTH.size + TAG_BYTES


class BadFrame(ValueError):
    """What came is no frame of the peer."""


class TagCounter:
    """Tags of one direction, in their order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._next = 0

    def make_tag(self, data: bytes) -> bytes:
        tag = hmac.digest(self._key, _NUMBER.pack(self._next) + data, "sha256")[:TAG_BYTES]
        self._next += 1
        return tag


class LinkFrameWriter:
    def __init__(self, key: bytes) -> None:
        self._tags = TagCounter(key)

    def make_frame(self, payload: bytes) -> bytes:
        """Raises ValueError: the payload is larger than a frame may be."""
        if len(payload) > MAX_FRAME_BYTES:
            raise ValueError(f"a message of {len(payload)} bytes is over the limit of {MAX_FRAME_BYTES}; split it")
        length = _LENGTH.pack(len(payload))
        return b"".join((length, self._tags.make_tag(length), payload, self._tags.make_tag(payload)))


class LinkFrameReader:
    """Takes frames apart, whose bytes may come in pieces of any size. It holds one frame and one piece at most."""

    def __init__(self, key: bytes) -> None:
        self._tags = TagCounter(key)
        self._waiting = bytearray()
        self._length: int | None = None  # of the payload, once that is known

    @property
    def is_inside_frame(self) -> bool:
        """Whether some bytes of a frame have come, and others have not."""
        return bool(self._waiting) or self._length is not None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the payloads that `data` completes.

        Raises:
            BadFrame: at the first byte that no frame can have there; later calls are of no use.
        """
        self._waiting += data
        while True:
            if self._length is None:
                if len(self._waiting) < _HEADER_BYTES:
                    return
                (self._length,) = _LENGTH.unpack(self._take_tagged(_LENGTH.size))
                if self._length > MAX_FRAME_BYTES:
                    raise BadFrame(f"a frame of {self._length} bytes is over the limit of {MAX_FRAME_BYTES}")
            if len(self._waiting) < self._length + TAG_BYTES:
                return
            payload = self._take_tagged(self._length)
            self._length = None
            yield payload

    def _take_tagged(self, size: int) -> bytes:
        """The next `size` bytes, which are there, as is their tag."""
        whole = memoryview(self._waiting)
        data, tag = bytes(whole[:size]), bytes(whole[size : size + TAG_BYTES])
        whole.release()  # a bytearray that is viewed cannot shrink
        del self._waiting[: size + TAG_BYTES]
        if not hmac.compare_digest(tag, self._tags.make_tag(data)):
            raise BadFrame("a frame is not authentic: it was changed, repeated or added on the way")
        return data
