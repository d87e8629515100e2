"""Reads what supervisors publish in the telemetry Redis. Nothing in the control plane may wait for it."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from jobs.model.records import AttemptRecord
from jobs.protocol import names
from jobs.protocol.hardware import NodeReading, decode_readings
from jobs.store.connections.shared_connection import SharedConnection
from shardyard.contract.errors import Unavailable
from shardyard.contract.responses import Progress

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: A status is answered without progress rather than late.
PROGRESS_SECONDS = 0.3
REPLY_SECONDS = 2.0
#: After a failure the telemetry Redis is not asked for this long.
PAUSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class TelemetryUpdate:
    """What was new. `entries`: key of a stream -> ids and frames."""

    progress: bytes | None
    report: bytes | None
    entries: dict[str, list[tuple[str, bytes]]]


class TelemetryReader:
    def __init__(self, client: Redis) -> None:
        self.client = client
        self._shared = SharedConnection(client)  # for progress, which each poll of a job that runs asks for
        self._silent_until = 0.0

    async def read_progress(self, tenant: str, job: str, attempt: int) -> Progress | None:
        """How far an attempt is, or `None`: it has not said so, or the telemetry Redis is away."""
        if time.monotonic() < self._silent_until:
            return None
        key = names.progress_key(tenant, job, attempt)
        try:
            body = await self._await_reply(PROGRESS_SECONDS, self._shared.execute("GET", key))
            return None if body is None else msgspec.json.decode(body, type=Progress)
        except (Unavailable, msgspec.MsgspecError):
            return None

    async def read_many_progress(self, attempts: Sequence[tuple[str, str, int]]) -> list[Progress | None]:
        """As `progress`, of several attempts, each given as (tenant, job, number), in one exchange."""
        unknown: list[Progress | None] = [None] * len(attempts)
        if not attempts or time.monotonic() < self._silent_until:
            return unknown
        keys = [names.progress_key(*attempt) for attempt in attempts]
        try:
            bodies = await self._await_reply(PROGRESS_SECONDS, self._shared.execute("MGET", *keys))
            return [None if body is None else msgspec.json.decode(body, type=Progress) for body in bodies]
        except (Unavailable, msgspec.MsgspecError):
            return unknown

    async def read_report(self, tenant: str, job: str, attempt: int) -> bytes | None:
        """The split report of an attempt as it stands.

        Raises:
            Unavailable: the telemetry Redis does not answer.
        """
        return await self._read_blob(names.report_key(tenant, job, attempt))

    async def read_samples(self, tenant: str, job: str, attempt: int) -> bytes | None:
        """The samples of an attempt's hardware as they stand. Raises as `read_report` does."""
        return await self._read_blob(names.hardware_key(tenant, job, attempt))

    async def read_readings(self, nodes: Sequence[str]) -> dict[str, list[NodeReading]]:
        """The newest readings of the devices of these nodes; none of a node that has sent none of late, and none at
        all while the telemetry Redis is away."""
        if not nodes or time.monotonic() < self._silent_until:
            return {}
        try:
            bodies = await self._await_reply(REPLY_SECONDS, self.client.mget(*map(names.readings_key, nodes)))
        except Unavailable:
            return {}
        found: dict[str, list[NodeReading]] = {}
        for node, body in zip(nodes, bodies, strict=True):
            with suppress(ValueError):
                found[node] = decode_readings(body) if isinstance(body, bytes) else []
        return found

    async def _read_blob(self, key: str) -> bytes | None:
        if time.monotonic() < self._silent_until:
            raise _unavailable()
        body = await self._await_reply(REPLY_SECONDS, self.client.get(key))
        return body.encode() if isinstance(body, str) else body  # the client does not decode; its types cannot say so

    async def read_update(
        self, tenant: str, job: str, attempt: int, *, report: bool, streams: Mapping[str, str], entries: int
    ) -> TelemetryUpdate:
        """What is new of a running attempt, in one exchange: its progress, its report if asked, and at most so many
        entries of each stream after the id that is given with its key.

        Raises:
            Unavailable: the telemetry Redis does not answer.
        """
        if time.monotonic() < self._silent_until:
            raise _unavailable()
        pipe = self.client.pipeline(transaction=False)
        pipe.get(names.progress_key(tenant, job, attempt))
        if report:
            pipe.get(names.report_key(tenant, job, attempt))
        if streams:
            pipe.xread(_without_types(streams), count=entries)
        replies = deque(await self._await_reply(REPLY_SECONDS, pipe.execute()))
        return TelemetryUpdate(
            progress=replies.popleft(),
            report=replies.popleft() if report else None,
            entries={
                key.decode(): [(name.decode(), fields[b"f"]) for name, fields in found]
                for key, found in _stream_entries(replies.popleft() if streams else None)
            },
        )

    async def ping(self) -> None:
        """Raises:
        Unavailable: the telemetry Redis does not answer.
        """
        await self._await_reply(REPLY_SECONDS, self.client.ping())

    async def delete_job(self, tenant: str, job: str, attempts: Sequence[AttemptRecord]) -> None:
        """Remove everything about a job.

        Raises:
            Unavailable: the telemetry Redis does not answer; its keys then go when they expire.
        """
        keys = [key for attempt in attempts for key in _attempt_keys(tenant, job, attempt)]
        if keys:
            await self._await_reply(REPLY_SECONDS, self.client.unlink(*keys))

    async def close(self) -> None:
        await self._shared.close()
        await self.client.aclose()

    async def _await_reply(self, seconds: float, reply: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(seconds):
                found = await reply
        except (RedisError, TimeoutError, OSError) as error:
            if time.monotonic() >= self._silent_until:
                log.warning("telemetry_redis_unavailable", error=str(error) or type(error).__name__)
            self._silent_until = time.monotonic() + PAUSE_SECONDS
            raise _unavailable() from error
        self._silent_until = 0.0
        return found


def _without_types(streams: Mapping[str, str]) -> dict[Any, Any]:
    """As redis-py's types want a dictionary of ids, which are narrower than what it takes."""
    return dict(streams)


def _stream_entries(reply: Any) -> Iterable[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    """Keys and entries of an XREAD, which RESP3 gives as a map (with a list around each stream's entries)."""
    if isinstance(reply, dict):
        return [(key, [entry for part in found for entry in part]) for key, found in reply.items()]
    return reply or []


def _attempt_keys(tenant: str, job: str, attempt: AttemptRecord) -> list[str]:
    number = attempt.number
    logs = [names.log_stream(tenant, job, number, device) for device in range(attempt.device_count)]
    single = (names.metric_stream, names.report_key, names.progress_key, names.hardware_key)
    return logs + [name(tenant, job, number) for name in single]


def _unavailable() -> Unavailable:
    return Unavailable("the telemetry Redis does not answer; try again")
