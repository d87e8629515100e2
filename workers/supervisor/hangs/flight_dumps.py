"""Reads the dumps of NCCL's flight recorder that ranks have left when a collective timed out.

A dump is a pickle of plain values: dicts, lists, texts and numbers. It comes from a process that ran a user's code, so
nothing but these is read from it, of files of bounded size. A few megabytes of a pickle can still become gigabytes of
values: dumps are read by a process of their own, whose memory and time are limited, and which has no credentials.
"""

import ast
import json
import os
import pickle
import resource
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import structlog

from workers.runtime.collectives import DUMP_PREFIX, RecorderEntry, find_calls
from workers.supervisor.hangs.diagnosis import RankState
from workers.supervisor.hangs.stacks import frames_of_dump, position_of

log = structlog.get_logger(__name__)

MAX_BYTES: Final = 64 << 20
MAX_DUMPS: Final = 256
#: For the process that reads them.
READ_SECONDS: Final = 30
MAX_MEMORY: Final = 1 << 30
MAX_ANSWER: Final = 4 << 20
_READER: Final = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from workers.supervisor.hangs import flight_dumps
flight_dumps.print_dumps(sys.argv[2])
"""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"a dump has no {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("a dump refers to nothing outside of it")


def read_dumps(directory: Path) -> list[RankState]:
    """What each rank that left a dump has called, and from where; nothing where that takes too much to read."""
    if not _find_dumps(directory):
        return []
    command = [sys.executable, "-c", _READER, json.dumps(sys.path), os.fspath(directory)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={}, timeout=READ_SECONDS, check=True
        )
        return msgspec.json.decode(done.stdout, type=list[RankState])
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as error:
        log.warning("flight_dumps_unreadable", error=f"{type(error).__name__}: {error}"[:500])
        return []


def print_dumps(directory: str) -> None:
    """What the process does that reads them: print their states as JSON."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (READ_SECONDS, READ_SECONDS))
    answer = msgspec.json.encode(read_states(Path(directory)))
    sys.stdout.buffer.write(answer if len(answer) <= MAX_ANSWER else b"[]")


def read_states(directory: Path) -> list[RankState]:
    """What each rank that left a dump has called, and from where, as this process reads it."""
    found = [_read_state(number, path) for number, path in _find_dumps(directory).items()]
    return sorted((state for state in found if state is not None), key=lambda state: state.rank)


def _find_dumps(directory: Path) -> dict[int, Path]:
    """The dumps by rank."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.startswith(DUMP_PREFIX))
    except OSError:
        return {}
    numbers = {name.removeprefix(DUMP_PREFIX): directory / name for name in names[:MAX_DUMPS]}
    return {int(number): path for number, path in numbers.items() if number.isdecimal() and len(number) < 10}


def _read_state(rank: int, path: Path) -> RankState | None:
    try:
        return parse_dump(rank, _load_plain(path))
    except Exception as error:  # noqa: BLE001  (a program may have written anything)
        log.warning("flight_dump_unreadable", path=str(path), error=f"{type(error).__name__}: {error}"[:500])
        return None


def _load_plain(path: Path) -> Any:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        _check_file(os.fstat(fd))
        return _PlainUnpickler(file).load()


def _check_file(status: os.stat_result) -> None:
    """
    Raises:
        ValueError: it is no plain file, or too large.
    """
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
        raise ValueError(f"a file of mode {status.st_mode:o} and {status.st_size} bytes is not a dump")


def parse_dump(rank: int, dump: Mapping[str, Any]) -> RankState:
    """
    Raises:
        KeyError, TypeError, ValueError, msgspec.ValidationError: it is no dump of a flight recorder.
    """
    raw = list(dump["entries"])
    entries = msgspec.convert(raw, list[RecorderEntry])
    calls = find_calls(entries, _ranks_of_groups(dump.get("pg_config") or {}))
    pending = {(one.group, one.pending.number) for one in calls if one.pending is not None}
    pairs = zip(raw, entries, strict=True)
    waited = next((each for each, entry in pairs if _key(entry) in pending and entry.is_pending), None)
    return RankState(rank, calls, position_of(frames_of_dump((waited or {}).get("frames") or ())))


def _key(entry: RecorderEntry) -> tuple[str, int]:
    return entry.process_group[0], entry.collective_seq_id


def _ranks_of_groups(config: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
    """The ranks of each group; torch writes them as a text, "[0, 1]"."""
    return {str(name): tuple(int(rank) for rank in ast.literal_eval(str(one["ranks"]))) for name, one in config.items()}
