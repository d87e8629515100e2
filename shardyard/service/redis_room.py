"""Keeps room for the append-only file of the control Redis, whatever jobs write.

A server that syncs every write ends at the first one that the disk refuses. A job can fill a disk in one system call,
before anybody sees it, so free space is no reserve. Space that is allocated to the file, beyond its end, is one: the
server's next writes go there. While the disk is low, the server does not rewrite the file by itself: a new file would
have no such space.
"""

import time
from collections.abc import Callable
from pathlib import Path

from jobs.support import fs
from jobs.support.disk_space import LowDisks, read_space
from shardyard.service import embedded_redis
from shardyard.service.embedded_redis import EmbeddedRedis

#: What is allocated ahead: hours of a busy service, and days of one that takes no new jobs. Of a small disk, a part of
#: the reserve.
ROOM_BYTES = 64 * 1024 * 1024
RESERVE_PARTS = 4
#: How often a server on a low disk is told again not to rewrite its file: one that was restarted does not know it.
REPEAT_SECONDS = 5.0
_REWRITE_OPTION = "auto-aof-rewrite-percentage"


class RedisRoom:
    """`say` receives one sentence about everything unexpected. `reserve_bytes` is that of the settings."""

    def __init__(self, server: EmbeddedRedis, reserve_bytes: int, say: Callable[[str], None]) -> None:
        self._server = server
        self._reserve_bytes = reserve_bytes
        self._say = say
        self._low = LowDisks()
        self._is_low: bool | None = None  # of which the server was told
        self._told_at = 0.0
        self._has_failed = False

    def keep(self) -> None:
        """Allocate what has been used up. It takes microseconds where there is nothing to do."""
        try:
            space = read_space(self._server.directory, self._reserve_bytes)
            file = self._newest_file()
            if file is not None:
                self._extend(file, min(ROOM_BYTES, space.reserve_bytes // RESERVE_PARTS))
        except OSError:
            return  # the directory itself is gone, which the server will say
        self._tell_server(bool(self._low.update([space])))

    def _newest_file(self) -> Path | None:
        """The file that is appended to: its name has the highest number."""
        files = (self._server.directory / "appendonlydir").glob("*.incr.aof")
        return max(files, key=_number_of, default=None)

    def _extend(self, file: Path, room: int) -> None:
        status = file.stat()
        if status.st_blocks * 512 - status.st_size >= room // 2:
            return
        try:
            fs.allocate_ahead(file, room)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                self._say(f"no room can be reserved for {self._server.name} in {file.parent}: {error.strerror}")
            self._has_failed = True

    def _tell_server(self, is_low: bool) -> None:
        due = is_low and time.monotonic() - self._told_at > REPEAT_SECONDS
        if is_low == self._is_low and not due:
            return
        self._told_at = time.monotonic()
        if embedded_redis.set_option(self._server, _REWRITE_OPTION, "0" if is_low else "100"):
            self._is_low = is_low


def _number_of(file: Path) -> int:
    """Of `appendonly.aof.7.incr.aof`: 7."""
    number = file.name.split(".")[-3]
    return int(number) if number.isdecimal() else 0
