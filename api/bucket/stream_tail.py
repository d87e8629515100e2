"""Logs and metrics of attempts in the telemetry Redis, beyond what was read from the bucket."""

import time
from dataclasses import dataclass

import redis
import structlog

from jobs.files.frame_file import CorruptFrame, Frame, parse_frame

log = structlog.get_logger(__name__)

#: Entries that are read at a time.
ENTRIES = 256
#: After a failure the telemetry Redis is not asked for so long.
PAUSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class TailPart:
    """Frames that follow one another, with their bytes, and whether the stream may have more."""

    frames: list[tuple[Frame, bytes]]
    has_more: bool


class StreamTails:
    """Reads streams for the threads of a process. `client` has short time limits."""

    def __init__(self, client: "redis.Redis") -> None:
        self._client = client
        self._silent_until = 0.0

    def read(self, key: str, last: Frame | None) -> TailPart | None:
        """Frames of a stream that follow `last`, if it goes on from there; None where it does not, does not exist, or
        is not to be reached."""
        if time.monotonic() < self._silent_until:
            return None
        try:
            pipe = self._client.pipeline(transaction=False)
            pipe.exists(key)
            pipe.xrange(key, min="-" if last is None else f"({last.id}", count=ENTRIES)
            exists, entries = pipe.execute()
        except redis.RedisError as error:
            log.warning("telemetry_redis_unavailable", error=str(error) or type(error).__name__)
            self._silent_until = time.monotonic() + PAUSE_SECONDS
            return None
        if not exists:
            return None
        found: list[tuple[Frame, bytes]] = []
        number = 0 if last is None else last.number
        for _, fields in entries:
            raw = fields[b"f"]
            try:
                frame, _ = parse_frame(raw)
            except CorruptFrame:
                return None
            if frame.number != number + 1:
                return None if not found else TailPart(found, has_more=False)
            number = frame.number
            found.append((frame, raw))
        return TailPart(found, has_more=len(entries) == ENTRIES)

    def close(self) -> None:
        self._client.close()
