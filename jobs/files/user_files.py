"""The record of the files that an attempt kept from its working directory, stored next to them.

It is written last, so an attempt that has one is done with keeping.
"""

from pathlib import Path

import msgspec

from jobs.files import paths
from jobs.support.fs import read_plain_file
from shardyard.contract.responses import LeftOutFiles

MAX_RECORD_BYTES = 1024 * 1024


class UserFilesRecord(msgspec.Struct, kw_only=True):
    """How many files were kept, with how many bytes together, and what was not. The layout grows at the end."""

    files: int
    bytes: int
    left_out: list[LeftOutFiles]


def read_record(attempt: Path) -> UserFilesRecord | None:
    """The record in the directory of an attempt; None where there is none that can be read."""
    try:
        body = read_plain_file(paths.user_files_record(attempt), MAX_RECORD_BYTES)
        return msgspec.json.decode(body, type=UserFilesRecord)
    except (OSError, msgspec.MsgspecError):
        return None


def write_record(attempt: Path, record: UserFilesRecord) -> None:
    """Write the record so that a reader sees all of it or none. Raises OSError."""
    target = paths.user_files_record(attempt)
    draft = target.with_name(f".{target.name}")
    try:
        draft.write_bytes(msgspec.json.encode(record))
        draft.rename(target)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
