"""Reads what supervisors publish in the telemetry Redis. Nothing of the control plane may wait for it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from jobs import wire
from jobs.errors import Unavailable
from jobs.record import AttemptRecord

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: A status is answered without progress rather than late.
PROGRESS_SECONDS = 0.3
REPLY_SECONDS = 2.0
#: After a failure nobody asks again for this long.
PAUSE_SECONDS = 2.0


class Telemetry:
    def __init__(self, client: Redis, clock: Callable[[], float] = time.monotonic) -> None:
        self.client = client
        self._clock = clock
        self._silent_until = 0.0

    async def progress(self, tenant: str, job: str, attempt: int) -> dict[str, Any] | None:
        """How far an attempt is, or `None`: it has not said so, or the telemetry Redis is away."""
        if self._clock() < self._silent_until:
            return None
        key = wire.progress_key(tenant, job, attempt)
        try:
            body = await self._within(PROGRESS_SECONDS, self.client.get(key))
            return None if body is None else msgspec.json.decode(body, type=dict[str, Any])
        except (Unavailable, msgspec.MsgspecError):
            return None

    async def report(self, tenant: str, job: str, attempt: int) -> bytes | None:
        """The split report of an attempt as it stands.

        Raises:
            Unavailable: the telemetry Redis does not answer.
        """
        if self._clock() < self._silent_until:
            raise _away()
        key = wire.report_key(tenant, job, attempt)
        body = await self._within(REPLY_SECONDS, self.client.get(key))
        return body.encode() if isinstance(body, str) else body  # the client does not decode; its types cannot say so

    async def ping(self) -> None:
        """Raises:
        Unavailable: the telemetry Redis does not answer.
        """
        await self._within(REPLY_SECONDS, self.client.ping())

    async def forget(self, tenant: str, job: str, attempts: Sequence[AttemptRecord]) -> None:
        """Remove everything about a job.

        Raises:
            Unavailable: the telemetry Redis does not answer; its keys then go when they expire.
        """
        keys = [key for attempt in attempts for key in _keys(tenant, job, attempt)]
        if keys:
            await self._within(REPLY_SECONDS, self.client.unlink(*keys))

    async def close(self) -> None:
        await self.client.aclose()

    async def _within(self, seconds: float, reply: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(seconds):
                found = await reply
        except (RedisError, TimeoutError, OSError) as error:
            if self._clock() >= self._silent_until:
                log.warning("telemetry_redis_unavailable", error=str(error) or type(error).__name__)
            self._silent_until = self._clock() + PAUSE_SECONDS
            raise _away() from error
        self._silent_until = 0.0
        return found


def _keys(tenant: str, job: str, attempt: AttemptRecord) -> list[str]:
    number = attempt.number
    logs = [wire.log_stream(tenant, job, number, device) for device in range(len(attempt.leased))]
    single = (wire.metric_stream, wire.report_key, wire.progress_key)
    return logs + [name(tenant, job, number) for name in single]


def _away() -> Unavailable:
    return Unavailable("the telemetry Redis does not answer; try again")
