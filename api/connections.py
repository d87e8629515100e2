"""Connections to Redis for the routes: so many and no more, and a request waits for one instead of failing."""

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff

from jobs.redis_store import CONNECT_SECONDS, REPLY_SECONDS

#: Redis answers one at a time, so more connections would only queue there instead of here.
MAX_CONNECTIONS = 32


def connect(url: str) -> Redis:
    """An asyncio client whose every wait has a deadline. It connects when it is first used."""
    retry = Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), 2)
    # What uvloop raises when a connection was reset while it lay in the pool; redis-py takes it for a bug of its own.
    retry.update_supported_errors([RuntimeError])  # type: ignore[list-item]
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=MAX_CONNECTIONS,
        timeout=REPLY_SECONDS,
        socket_timeout=REPLY_SECONDS,
        socket_connect_timeout=CONNECT_SECONDS,
        health_check_interval=15,
        retry=retry,
    )
    return Redis.from_pool(pool)
