"""Commands of many asyncio tasks on one connection to Redis: what is asked while replies are on their way is written
together when these have come, and replies are given out in their order.

A connection for each task costs several times as much, in the server as well: it syncs what it has read in one turn
with one write to the disk. Nothing that blocks (BLPOP, XREAD BLOCK) may be sent here: all others would wait with it.
"""

import asyncio
import random
from collections import deque
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

#: Waits before a command whose connection was lost is sent again, in seconds.
RETRY_SECONDS = (0.05, 0.1)
#: Far more than one process has requests at once.
MAX_UNANSWERED = 10_000


class Exchange:
    """Sends commands to the server of `client`, whose settings its one connection has. It is given up when nothing came
    for `seconds` while somebody waited.

    Raises (from both calls):
        redis.exceptions.RedisError: the server's own error; ConnectionError or TimeoutError when it was tried three
            times in vain. Such a command may have taken effect, so all of them must be idempotent.
    """

    def __init__(self, client: Redis, seconds: float) -> None:
        self._pool = client.connection_pool
        self._seconds = seconds
        self._line: _Line | None = None
        self._opening: asyncio.Task[_Line] | None = None

    async def execute(self, *command: str | bytes | int) -> Any:
        for pause in (*RETRY_SECONDS, None):
            try:
                line = self._line
                if line is None or line.lost:
                    line = await self._open()
                return await line.ask(command)
            except (RedisConnectionError, RedisTimeoutError):
                if pause is None:
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  (jitter, not a secret)
        raise AssertionError("the last try returns or raises")

    async def script(self, source: str, digest: str, args: tuple[str | bytes | int, ...]) -> Any:
        """Run a script that takes no keys, and have the server keep it. `digest` is the SHA-1 of `source`, hex."""
        try:
            return await self.execute("EVALSHA", digest, 0, *args)
        except ResponseError as error:
            if not str(error).startswith("NOSCRIPT"):
                raise
            await self.execute("SCRIPT", "LOAD", source)
            return await self.execute("EVALSHA", digest, 0, *args)

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._line is not None:
            self._line.close(RedisConnectionError("the connection was closed"))
            await self._line.closed()

    async def _open(self) -> "_Line":
        """The connection, opened once for all who ask meanwhile."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._connect())
        return await asyncio.shield(self._opening)

    async def _connect(self) -> "_Line":
        # Without a deadline of its own, for which it makes a task each time that something is sent.
        connection = self._pool.connection_class(**self._pool.connection_kwargs | {"socket_timeout": None})
        try:
            async with asyncio.timeout(self._seconds):
                await connection.connect()  # type: ignore[no-untyped-call]
        except TimeoutError as error:
            raise RedisTimeoutError(f"the server did not greet within {self._seconds:g} s") from error
        except RuntimeError as error:  # uvloop, of a connection that was reset
            raise RedisConnectionError(f"the connection was lost: {error}") from error
        self._line = _Line(connection, self._seconds)
        return self._line


class _Line(asyncio.Protocol):
    """One connection. It is lost with the first failure, and everybody who waits is told."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self.lost = False
        self._connection = connection
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._replies = hiredis.Reader(protocolError=RedisConnectionError, replyError=ResponseError)
        self._unsent: list[bytes] = []
        self._unanswered: deque[asyncio.Future[Any]] = deque()
        self._sent = 0  # of those, the first so many
        self._answered = 0
        self._watch: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        # redis-py has opened it and proven who we are. Its own way to read, by a stream, takes a task and a turn of the
        # loop more for each reply.
        self._transport = connection._writer.transport
        self._transport.set_protocol(self)

    def ask(self, command: tuple[str | bytes | int, ...]) -> "asyncio.Future[Any]":
        if self.lost:  # since it was opened, and before whoever asked for it has had its turn
            raise RedisConnectionError("the connection was lost at once")
        if len(self._unanswered) >= MAX_UNANSWERED:
            raise RedisConnectionError(f"{MAX_UNANSWERED} commands wait for an answer already")
        self._unsent.append(hiredis.pack_command(command))  # type: ignore[arg-type]  # its type says a tuple of one
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._unanswered.append(reply)
        if not self._sent:
            self._send()
        if self._watch is None:
            self._watch = self._loop.call_later(self._seconds, self._look, self._answered)
        return reply

    def _send(self) -> None:
        packed, self._unsent = self._unsent, []
        self._sent = len(packed)
        try:
            self._transport.write(packed[0] if len(packed) == 1 else b"".join(packed))
        except (OSError, RuntimeError) as error:  # RuntimeError: uvloop, of a connection that was reset
            self.close(RedisConnectionError(f"the connection was lost: {error}"))

    def data_received(self, data: bytes) -> None:
        try:
            self._replies.feed(data)
            while not self.lost and (reply := self._replies.gets()) is not False:
                if isinstance(reply, hiredis.PushNotification):
                    continue
                if not self._sent:
                    self.close(RedisConnectionError("the server sent a reply that nobody asked for"))
                    return
                self._sent -= 1
                self._answered += 1
                _give(self._unanswered.popleft(), reply)
            if self._unsent and not self._sent:
                self._send()
        except RedisConnectionError as error:
            self.close(error)
        except IndexError:
            self.close(RedisConnectionError("the server answered more than it was asked"))

    def connection_lost(self, error: Exception | None) -> None:
        self.close(RedisConnectionError(f"the connection was lost: {error or 'the server closed it'}"))

    def _look(self, answered: int) -> None:
        """Called every so often while somebody waits: nothing may have come in between."""
        self._watch = None
        if self._unanswered and answered == self._answered:
            self.close(RedisTimeoutError(f"the server did not answer within {self._seconds:g} s"))
        elif self._unanswered:
            self._watch = self._loop.call_later(self._seconds, self._look, self._answered)

    def close(self, why: RedisError) -> None:
        if self.lost:
            return
        self.lost = True
        if self._watch is not None:
            self._watch.cancel()
        while self._unanswered:
            _give(self._unanswered.popleft(), why)
        self._closing = self._loop.create_task(self._connection.disconnect(nowait=True))

    async def closed(self) -> None:
        if self._closing is not None:
            await self._closing


def _give(reply: "asyncio.Future[Any]", value: Any) -> None:
    if reply.done():  # who asked has left
        return
    if isinstance(value, RedisError):
        reply.set_exception(value)
    else:
        reply.set_result(value)
