"""Opaque cursors: positions in lists and logs. They carry no rights, so they need no signature."""

import base64
import binascii
import uuid

import msgspec

from shardyard.contract.errors import MalformedCursor

MAX_CURSOR_LENGTH = 32_768
MAX_POSITION_DIGITS = 20


class LogCursor(msgspec.Struct, frozen=True, array_like=True):
    """A position in the logs of one attempt: the last line seen of each device."""

    attempt: int
    seen: dict[int, int]


def encode_job(job: str) -> str:
    return encode_text(uuid.UUID(job).bytes)


def decode_job(cursor: str) -> str:
    """The id of the job that a page ended with.

    Raises:
        MalformedCursor: not one of ours.
    """
    try:
        return str(uuid.UUID(bytes=decode_text(cursor)))
    except ValueError:
        raise _malformed_cursor() from None


def encode_position(position: int) -> str:
    return encode_text(str(position).encode())


def decode_position(cursor: str) -> int:
    """Raises:
    MalformedCursor: not one of ours.
    """
    digits = decode_text(cursor)
    if not digits.isdigit() or len(digits) > MAX_POSITION_DIGITS:
        raise _malformed_cursor()
    return int(digits)


def encode_log(cursor: LogCursor) -> str:
    return encode_text(msgspec.msgpack.encode(cursor))


def decode_log(cursor: str) -> LogCursor:
    """Raises:
    MalformedCursor: not one of ours.
    """
    try:
        found = msgspec.msgpack.decode(decode_text(cursor), type=LogCursor)
    except (msgspec.MsgspecError, RecursionError):
        raise _malformed_cursor() from None
    if found.attempt < 1 or any(device < 0 or not 0 <= seq < 2**63 for device, seq in found.seen.items()):
        raise _malformed_cursor()
    return found


def encode_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode_text(text: str) -> bytes:
    if len(text) > MAX_CURSOR_LENGTH:
        raise _malformed_cursor()
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _malformed_cursor() from None


def _malformed_cursor() -> MalformedCursor:
    return MalformedCursor("the cursor was not issued by this service; leave it out to start from the beginning")
