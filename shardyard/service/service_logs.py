"""The logs of the processes that `shardyard up` runs: opened for them, rotated while they write, read when they die.

    api.log       what is written now
    api.log.1     what was before, to api.log.5, the oldest

A log is renamed when it has grown. Our own processes notice that (`jobs.support.log_follower`), and Redis opens its log
anew for each line; so no line is lost, and none is waited for.
"""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

MAX_LOG_BYTES: Final = 16 * 1024 * 1024
#: Older ones than this many are removed.
KEPT_LOGS: Final = 5
LOG_TAIL_LINES: Final = 15
MAX_ERROR_LENGTH: Final = 1000


def open_log(path: Path) -> BinaryIO:
    """The log, for a process that is started. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    rotate_log(path)
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def rotate_log(path: Path) -> bool:
    """Rename a log that has grown, and those before it; whether it had. A directory that cannot be written is left as
    it is: the log grows until it can."""
    with suppress(OSError):
        if path.stat().st_size <= MAX_LOG_BYTES:
            return False
        for number in range(KEPT_LOGS - 1, 0, -1):
            with suppress(FileNotFoundError):
                _numbered(path, number).replace(_numbered(path, number + 1))
        path.replace(_numbered(path, 1))
        return True
    return False


def tail_log(path: Path) -> str:
    """The last lines of a log, indented for a message."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"    (cannot be read: {error})"
    return "\n".join(f"    {line}" for line in text.splitlines()[-LOG_TAIL_LINES:]) or "    (empty)"


def find_last_error(path: Path) -> str:
    """Why the process of this log has ended, in a sentence: what it said that it cannot start for, the exception of a
    traceback, or its last line; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64 * 1024))
            lines = file.read().decode(errors="replace").rstrip().splitlines()
    except OSError as error:
        return f"its log cannot be read: {error.strerror}"
    for number, line in reversed(list(enumerate(lines))):
        if line.startswith("{"):
            return _read_record(line)
        if line and not line[0].isspace():
            told = " ".join(each.strip() for each in lines[number:])  # an exception may have several lines
            return told[:MAX_ERROR_LENGTH]
    return ""


def _read_record(line: str) -> str:
    try:
        record = json.loads(line)
        return str(record.get("why") or record.get("error") or record.get("event") or line)[:MAX_ERROR_LENGTH]
    except ValueError:
        return line[:MAX_ERROR_LENGTH]


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
