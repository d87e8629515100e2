"""Executes store calls on Redis: one class for threads, one for asyncio, and nothing else in them."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.exceptions import (
    BusyLoadingError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from jobs import store
from jobs.store.call import Word
from jobs.store.connections.confirmation import NotConfirmed, wait_command
from jobs.store.connections.sentinels import is_sentinel_url, replicas_of, sentinel_client
from jobs.store.connections.shared_connection import SharedConnection
from jobs.store.function_library import function_library, is_function_missing
from shardyard.contract.errors import Unavailable

T = TypeVar("T")

CONNECT_SECONDS = 2.0
REPLY_SECONDS = 5.0

#: How a server says that it cannot serve for now. redis-py has classes for some, which drop the word.
_REFUSALS = (OutOfMemoryError, ReadOnlyError, MasterDownError, BusyLoadingError)
_REFUSING_WORDS = ("OOM", "MISCONF", "LOADING", "READONLY", "BUSY", "MASTERDOWN", "NOREPLICAS")


def connect(url: str) -> "redis.Redis":
    """A synchronous client. Every wait has a deadline, and a lost connection is tried again twice:
    each call is idempotent, so a command whose reply was lost may be sent again.

    Raises:
        ValueError: the URL cannot be read.
    """
    return _client(
        url,
        socket_timeout=REPLY_SECONDS,
        socket_connect_timeout=CONNECT_SECONDS,
        health_check_interval=15,
        retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), 2),
    )


def connect_for_loss(url: str, wait_seconds: float) -> "redis.Redis":
    """A synchronous client for what may get lost: no wait is longer than `wait_seconds`, and nothing is sent again."""
    return _client(url, socket_timeout=wait_seconds, socket_connect_timeout=wait_seconds, retry=Retry(NoBackoff(), 0))


def _client(url: str, **settings: Any) -> "redis.Redis":
    # Without driver_info: else each connection reads which version this is from disk, and tells it in two more calls.
    if is_sentinel_url(url):
        return sentinel_client(url, driver_info=None, **settings)
    client: redis.Redis = redis.Redis.from_url(url, driver_info=None, **settings)
    return client


class RedisStore:
    """Runs calls from a thread.

    Raises (from `run` and `run_all`):
        Unavailable: Redis does not answer, or refuses to serve for now.
    """

    def __init__(self, client: "redis.Redis", replicas: int = 0) -> None:
        """`replicas` must have each change before it counts."""
        self.client = client
        self._replicas = replicas

    @classmethod
    def from_url(cls, url: str) -> "RedisStore":
        return cls(connect(url), replicas_of(url))

    def run(self, call: store.Call[T]) -> T:
        return self.run_all([call])[0]

    def run_all(self, calls: Sequence[store.Call[T]]) -> list[T]:
        """In one exchange; what each returned."""
        with redis_errors():
            replies = self._execute([call.command for call in calls], writes=any(call.writes for call in calls))
            return [call.decode(reply) for call, reply in zip(calls, replies, strict=True)]

    def _execute(self, commands: Sequence[tuple[Word, ...]], *, writes: bool) -> list[Any]:
        try:
            return self._send_all(commands, writes=writes)
        except ResponseError as error:
            if not is_function_missing(error):
                raise
        self._load_functions()
        return self._send_all(commands, writes=writes)

    def _send_all(self, commands: Sequence[tuple[Word, ...]], *, writes: bool) -> list[Any]:
        if self._replicas and writes:
            return self._send_confirmed(commands)
        if len(commands) == 1:
            return [self._send(commands[0])]
        with self.client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)  # type: ignore[no-untyped-call]
            return pipe.execute()

    def _send_confirmed(self, commands: Sequence[tuple[Word, ...]]) -> list[Any]:
        with self.client.pipeline(transaction=False) as pipe:
            for command in (*commands, wait_command(self._replicas)):
                pipe.execute_command(*command)  # type: ignore[no-untyped-call]
            *replies, had = pipe.execute(raise_on_error=False)
        for reply in (*replies, had):
            if isinstance(reply, Exception):
                raise reply
        if had < self._replicas:
            raise NotConfirmed(had, self._replicas)
        return replies

    def _load_functions(self) -> None:
        library = function_library()
        with _loading_functions():
            self._send(library.load_command)
        for command in library.delete_commands(self._send(library.list_command)):
            with suppress(ResponseError):  # another process has just deleted it
                self._send(command)

    def _send(self, command: tuple[Word, ...]) -> Any:
        return self.client.execute_command(*command)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self.client.close()


class AsyncRedisStore:
    """Runs calls from asyncio, all of them on one connection. Raises as `RedisStore` does.

    `client` is for commands that would hold up the others: it has connections of its own.
    """

    def __init__(self, client: "redis.asyncio.Redis", replicas: int = 0, *, is_open: bool = True) -> None:
        """`replicas` must have each change before it counts. `is_open=False`: calls are refused as Unavailable until
        `open` is called."""
        self.client = client
        self._connection = SharedConnection(client, replicas)
        self._opened = asyncio.Event()
        if is_open:
            self.open()

    def open(self) -> None:
        self._opened.set()

    async def wait_until_open(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._opened.wait(), seconds)

    async def run(self, call: store.Call[T]) -> T:
        if not self._opened.is_set():
            raise Unavailable("the control Redis is not ready yet; try again in a moment")
        try:
            return call.decode(await self._execute(call.command, writes=call.writes))
        except (RedisError, TimeoutError) as error:
            raise _translate(error) from error

    async def _execute(self, command: tuple[Word, ...], *, writes: bool) -> Any:
        try:
            return await self._send(command, writes=writes)
        except ResponseError as error:
            if not is_function_missing(error):
                raise
        await self._load_functions()
        return await self._send(command, writes=writes)

    async def _load_functions(self) -> None:
        library = function_library()
        with _loading_functions():
            await self._send(library.load_command)
        for command in library.delete_commands(await self._send(library.list_command)):
            with suppress(ResponseError):  # another process has just deleted it
                await self._send(command)

    async def _send(self, command: tuple[Word, ...], *, writes: bool = True) -> Any:
        return await self._connection.execute(*command, writes=writes)

    async def close(self) -> None:
        await self._connection.close()
        await self.client.aclose()


@contextmanager
def _loading_functions() -> Iterator[None]:
    """Only the API may load functions where each role has a user of its own; it does so when it starts."""
    try:
        yield
    except NoPermissionError as error:
        raise Unavailable(
            "the control Redis does not have the functions of this version yet, and this process may not load them: "
            "start the API of this version first"
        ) from error


@contextmanager
def redis_errors() -> Iterator[None]:
    """Raises Unavailable in place of the errors of redis-py that pass by themselves."""
    try:
        yield
    except (RedisError, TimeoutError) as error:
        raise _translate(error) from error


def _translate(error: RedisError | TimeoutError) -> Exception:
    """`Unavailable` for what passes by itself; anything else is a bug here and stays what it is."""
    refused = isinstance(error, _REFUSALS) or str(error).startswith(_REFUSING_WORDS)
    if refused and isinstance(error, ResponseError | BusyLoadingError):
        return Unavailable(f"the control Redis refuses requests for now ({error}); try again")
    if isinstance(error, NotConfirmed):
        return Unavailable(
            f"the control Redis has made the change, but {error}, so it could be lost with that server; try again"
        )
    if isinstance(error, RedisConnectionError | RedisTimeoutError | TimeoutError):
        return Unavailable("the control Redis does not answer; it is not known whether the call took effect, try again")
    return error
