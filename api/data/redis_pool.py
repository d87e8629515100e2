"""Connections to Redis for the routes: a limited number, for which requests wait instead of failing."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from jobs.store.client import CONNECT_SECONDS, REPLY_SECONDS
from jobs.store.connections.sentinels import async_sentinel_client, is_sentinel_url

T = TypeVar("T")

#: Redis answers one at a time, so more connections would only queue there instead of here.
MAX_CONNECTIONS = 32


class _Retry(Retry):
    """Knows a lost connection also by what uvloop raises for one that was reset: redis-py takes that for a bug of its
    own, and neither tries again nor says that Redis is away."""

    async def call_with_retry(self, do: Callable[[], Awaitable[T]], *args: Any, **kwargs: Any) -> T:
        async def translated() -> T:
            try:
                return await do()
            except RuntimeError as error:
                raise RedisConnectionError(f"the connection was lost: {error}") from error

        return await super().call_with_retry(translated, *args, **kwargs)


def connect(url: str, reply_seconds: float = REPLY_SECONDS) -> Redis:
    """An asyncio client whose every wait has a deadline. It connects when it is first used.

    Without redis-py's health checks: of a server that stalls, the check of a new connection opens that connection
    again, and so on without end (redis-py 8.1).
    """
    settings: dict[str, Any] = {
        "max_connections": MAX_CONNECTIONS,
        "timeout": reply_seconds,
        "socket_timeout": reply_seconds,
        "socket_connect_timeout": CONNECT_SECONDS,
        "retry": _Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), 2),
        "driver_info": None,  # as in `jobs.store.client:connect`
    }
    if is_sentinel_url(url):
        return async_sentinel_client(url, **settings)
    return Redis.from_pool(BlockingConnectionPool.from_url(url, **settings))
