"""Sends an attempt's frames from their files to the telemetry Redis, in a thread of its own.

The file is the queue: the relay notes up to which offset each file is complete, and this thread reads from its own
offset on. So it holds no more than one batch in memory, however long Redis is away, and sending again after a loss is
the same as sending. Nothing here can slow down or fail the supervisor's loop.

A batch goes through one script that adds to the stream only if the stream ends where the batch begins, and
otherwise answers where it does end; the thread then goes on from there. So a stream has no gap and no repeat,
whether a reply got lost, Redis came back without its last second, or with nothing at all. In that last case it
begins anew with the window, since older items are in the file.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
import structlog

from jobs.files.frame_file import Frame, FrameKind, FrameReader
from jobs.protocol import names
from jobs.store.client import connect_for_loss

EMPTY = "0-0"
#: One batch of one stream, and of all streams together.
_BATCH_BYTES = 256 * 1024
_ROUND_BYTES = 2 * 1024 * 1024
#: Shortest time between two rounds: under a flood it makes batches of many chunks, and leaves the CPU to training.
_ROUND_SECONDS = 0.01
_SOCKET_SECONDS = 2.0
_BACKOFF_SECONDS = (0.1, 5.0)
#: A stream lives so long after its newest frame.
WINDOW_SECONDS = 3600
#: And so long after its seal: its file is whole by then, and readers turn to that when the attempt is over.
SEALED_SECONDS = 120
#: A stream's window is trimmed by sixteenths.
_MARKS = 16

_log = structlog.get_logger(__name__)

# KEYS stream; ARGV: the id that the stream must end with, the id below which entries may go, seconds to live,
# then id and frame, alternately. Answers the id that the stream ends with now.
_SHIP = """
local last = '0-0'
if redis.call('EXISTS', KEYS[1]) == 1 then
  local info = redis.call('XINFO', 'STREAM', KEYS[1])
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = info[i + 1] end
  end
end
if last ~= ARGV[1] then return last end
for i = 4, #ARGV, 2 do
  redis.call('XADD', KEYS[1], 'MINID', '~', ARGV[2], ARGV[i], 'f', ARGV[i + 1])
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return ARGV[#ARGV - 1]
"""


@dataclass(slots=True)
class _ShippedStream:
    """One stream and the file behind it. Up to `offset` all is in Redis, whose last id is then `id`."""

    key: str
    path: Path
    end: int = 0
    offset: int = 0
    id: str = EMPTY
    sent: int = 0  # bytes, since the stream began
    trim_marks: deque[tuple[int, int]] = field(default_factory=deque)  # (bytes sent, last item), some in each window

    def mark_sent(self, frame: Frame, window: int) -> None:
        """Count a frame that was sent, and forget marks that are no longer needed to trim."""
        self.sent += frame.end - frame.offset
        if not self.trim_marks or self.sent - self.trim_marks[-1][0] >= window // _MARKS:
            self.trim_marks.append((self.sent, frame.last))
        while len(self.trim_marks) > 1 and self.sent - self.trim_marks[1][0] >= window:
            self.trim_marks.popleft()

    def oldest_kept_id(self, window: int) -> str:
        """The id below which entries are out of the window."""
        if self.trim_marks and self.sent - self.trim_marks[0][0] >= window:
            return f"{self.trim_marks[0][1]}-0"
        return EMPTY


@dataclass(slots=True)
class _FrameBatch:
    channel: _ShippedStream
    frames: list[Frame]
    raws: list[bytes]


class StreamShipper:
    """Ships the files and small blobs of one attempt. All methods may be called from the supervisor's thread."""

    def __init__(
        self,
        url: str,
        tenant: str,
        job: str,
        attempt: int,
        *,
        window_bytes: int = 4 * 1024 * 1024,
    ) -> None:
        """Start the thread, which connects by itself.

        A stream keeps about `window_bytes`, and expires after `WINDOW_SECONDS` without a new frame, or `SEALED_SECONDS`
        after its seal.
        """
        self._log_key: Callable[[int], str] = lambda device: names.log_stream(tenant, job, attempt, device)
        self._metric_key = names.metric_stream(tenant, job, attempt)
        self._window_bytes = window_bytes
        self._client = connect_for_loss(url, _SOCKET_SECONDS)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._streams: dict[str, _ShippedStream] = {}
        self._blobs: dict[str, tuple[bytes, int]] = {}
        self._failures = 0
        self._thread = threading.Thread(target=self._ship_until_closed, name="shipper", daemon=True)
        self._thread.start()

    def ship_log(self, device: int, path: Path, end: int) -> None:
        """Note that the log file of `device` is complete up to `end` bytes. Never waits."""
        self._extend_stream(self._log_key(device), path, end)

    def ship_metrics(self, path: Path, end: int) -> None:
        """Note that the metric file is complete up to `end` bytes. Never waits."""
        self._extend_stream(self._metric_key, path, end)

    def put_blob(self, key: str, blob: bytes, ttl: int) -> None:
        """Set a key for `ttl` seconds. Of several values for one key only the latest is sent. Never waits."""
        with self._lock:
            self._blobs[key] = (blob, ttl)
        self._wake.set()

    def close(self, timeout: float) -> list[str]:
        """Send what is left, for at most `timeout` seconds; returns a text for each thing that could not be sent."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout)
        with self._lock:
            left = [
                f"{channel.key}: {channel.end - channel.offset} bytes after {channel.id}"
                for channel in self._streams.values()
                if channel.offset < channel.end
            ]
            return left + [f"{key}: {len(blob)} bytes" for key, (blob, _) in self._blobs.items()]

    def _extend_stream(self, key: str, path: Path, end: int) -> None:
        with self._lock:
            self._streams.setdefault(key, _ShippedStream(key, path)).end = end
        self._wake.set()

    # -- the thread --------------------------------------------------------------------------------

    def _ship_until_closed(self) -> None:
        """Until `close`: send rounds; wait when there is nothing to send, or, longer and longer, when sending fails.

        After `close` it goes on until all is sent. It is a daemon, so the process may end before that.
        """
        while True:
            self._wake.clear()
            try:
                worked = self._send_round()
                self._note_success()
            except (redis.RedisError, OSError, ValueError) as error:
                self._note_failure(error)
                self._back_off()
                continue
            if worked:
                self._stop.wait(_ROUND_SECONDS)
            elif self._stop.is_set():
                self._client.close()
                return
            else:
                self._wake.wait()

    def _back_off(self) -> None:
        """Wait after a failure: a random part of a time that doubles, so that shippers do not come back all at once."""
        shortest, longest = _BACKOFF_SECONDS
        if self._stop.is_set():  # the last seconds count: try often
            time.sleep(shortest)
            return
        longest = min(longest, shortest * 2 ** min(self._failures, 10))
        self._stop.wait(random.uniform(shortest / 2, longest))  # noqa: S311 - no secret

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == 1:
            with suppress(OSError):
                _log.warning("telemetry_not_shipped", error=str(error))

    def _note_success(self) -> None:
        if self._failures:
            with suppress(OSError):
                _log.info("telemetry_shipped_again", failures=self._failures)
        self._failures = 0

    def _send_round(self) -> bool:
        """Send one batch of each stream that has something new, and the blobs; False if there was nothing.

        Raises:
            redis.RedisError: some of it was not sent.
            OSError: a file cannot be read.
        """
        batches, errors = self._next_batches()
        with self._lock:
            blobs, self._blobs = self._blobs, {}
        if batches or blobs:
            errors += self._send_all(batches, blobs)
        if errors:
            raise errors[0]
        return bool(batches or blobs)

    def _send_all(self, batches: list[_FrameBatch], blobs: dict[str, tuple[bytes, int]]) -> list[Exception]:
        """Send, note what arrived, keep the rest for later; returns the errors of commands that were refused.

        Raises:
            redis.RedisError: there was no answer to all of them.
        """
        pipe = self._client.pipeline(transaction=False)
        for batch in batches:
            pipe.eval(_SHIP, 1, batch.channel.key, *self._script_arguments(batch))
        for key, (blob, ttl) in blobs.items():
            pipe.set(key, blob, ex=ttl)
        try:
            replies: list[Any] = pipe.execute(raise_on_error=False)
        except redis.RedisError:
            self._put_back(blobs)
            raise
        refused = [
            key for key, reply in zip(blobs, replies[len(batches) :], strict=True) if isinstance(reply, Exception)
        ]
        self._put_back({key: blobs[key] for key in refused})
        for batch, reply in zip(batches, replies, strict=False):
            if not isinstance(reply, Exception):
                self._apply_reply(batch, reply.decode())
        return [reply for reply in replies if isinstance(reply, Exception)]

    def _put_back(self, blobs: dict[str, tuple[bytes, int]]) -> None:
        """Keep blobs to be sent later, unless newer ones came."""
        with self._lock:
            self._blobs = blobs | self._blobs

    def _next_batches(self) -> tuple[list[_FrameBatch], list[Exception]]:
        """The next batches, and the errors of files that cannot be read, which must not hold up the other streams."""
        with self._lock:
            waiting = [channel for channel in self._streams.values() if channel.offset < channel.end]
        batches: list[_FrameBatch] = []
        errors: list[Exception] = []
        size = 0
        for channel in sorted(waiting, key=lambda channel: channel.sent):  # those that have sent least first
            try:
                batch = _read_batch(channel)
            except OSError as error:
                errors.append(error)
                continue
            if batch.frames:
                batches.append(batch)
            size += sum(map(len, batch.raws))
            if size >= _ROUND_BYTES:
                break
        return batches, errors

    def _script_arguments(self, batch: _FrameBatch) -> list[str | bytes | int]:
        channel = batch.channel
        seconds = SEALED_SECONDS if batch.frames[-1].kind == FrameKind.SEAL else WINDOW_SECONDS
        arguments: list[str | bytes | int] = [channel.id, channel.oldest_kept_id(self._window_bytes), seconds]
        for frame, raw in zip(batch.frames, batch.raws, strict=True):
            arguments += (frame.id, raw)
        return arguments

    def _apply_reply(self, batch: _FrameBatch, last_id: str) -> None:
        """Continue from the id with which the stream ends, as Redis answered."""
        channel, newest = batch.channel, batch.frames[-1]
        if last_id == newest.id:
            channel.offset, channel.id = newest.end, last_id
            for frame in batch.frames:
                channel.mark_sent(frame, self._window_bytes)
        else:
            channel.id = last_id
            channel.trim_marks.clear()
            channel.offset = _resume_at(channel, self._window_bytes)


def _read_batch(channel: _ShippedStream) -> _FrameBatch:
    batch, size = _FrameBatch(channel, [], []), 0
    with FrameReader(channel.path, channel.end) as reader:
        for frame in reader.forward(reader.frame_at(channel.offset)):
            raw = reader.raw(frame)
            batch.frames.append(frame)
            batch.raws.append(raw)
            size += len(raw)
            if size >= _BATCH_BYTES:
                break
    return batch


def _resume_at(channel: _ShippedStream, window_bytes: int) -> int:
    """Offset of the first frame that the stream lacks; of the window's first, where there is no stream."""
    with FrameReader(channel.path, channel.end) as reader:
        if channel.id == EMPTY:
            offset = channel.end
            for frame in reader.backward(reader.last()):
                if channel.end - frame.offset > window_bytes:
                    break
                offset = frame.offset
            return offset
        item, _, mark = channel.id.partition("-")
        if mark == "1":
            return channel.end
        frame_after = reader.locate(int(item) + 1)
        return channel.end if frame_after is None else frame_after.offset
