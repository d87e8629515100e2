"""Commands of many asyncio tasks on one connection to Redis: those of one turn of the loop are written together, and
replies are given out in the order in which they come.

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
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

#: Waits before a command whose connection was lost is sent again, in seconds.
RETRY_SECONDS = (0.05, 0.1)
#: Far more than one process has requests at once.
MAX_UNANSWERED = 10_000


class Exchange:
    """Sends commands to the server of `client`, whose settings its one connection has. Each reply has `seconds` to come.

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
        except NoScriptError:
            await self.execute("SCRIPT", "LOAD", source)
            return await self.execute("EVALSHA", digest, 0, *args)

    async def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._line is not None:
            await self._line.close(RedisConnectionError("the connection was closed"))

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
                await connection.connect()
        except TimeoutError as error:
            raise RedisTimeoutError(f"the server did not greet within {self._seconds:g} s") from error
        except RuntimeError as error:  # uvloop, of a connection that was reset
            raise RedisConnectionError(f"the connection was lost: {error}") from error
        self._line = _Line(connection, self._seconds)
        return self._line


class _Line:
    """One connection. It is lost with the first failure, and everybody who waits is told."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self.lost = False
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._seconds = seconds
        self._unsent: list[bytes] = []
        self._unanswered: deque[asyncio.Future[Any]] = deque()
        self._to_send, self._to_read = asyncio.Event(), asyncio.Event()
        self._tasks = [asyncio.create_task(self._keep(work)) for work in (self._send, self._read)]

    def ask(self, command: tuple[str | bytes | int, ...]) -> "asyncio.Future[Any]":
        if len(self._unanswered) >= MAX_UNANSWERED:
            raise RedisConnectionError(f"{MAX_UNANSWERED} commands wait for an answer already")
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._unsent.append(hiredis.pack_command(command))
        self._unanswered.append(reply)
        self._to_send.set()
        self._to_read.set()
        return reply

    async def _send(self) -> None:
        while True:
            await self._to_send.wait()
            self._to_send.clear()
            packed, self._unsent = self._unsent, []
            async with asyncio.timeout(self._seconds):
                await self._connection.send_packed_command(packed, check_health=False)

    async def _read(self) -> None:
        while True:
            await self._to_read.wait()
            self._to_read.clear()
            async with asyncio.timeout(None) as limit:
                while self._unanswered:
                    limit.reschedule(self._loop.time() + self._seconds)
                    try:
                        _give(self._unanswered[0], await self._connection.read_response())
                    except (RedisConnectionError, RedisTimeoutError):
                        raise
                    except RedisError as error:  # the server's answer to this one command
                        _refuse(self._unanswered[0], error)
                    self._unanswered.popleft()

    async def _keep(self, work: Any) -> None:
        try:
            await work()
        except TimeoutError:
            await self.close(RedisTimeoutError(f"the server did not answer within {self._seconds:g} s"))
        except (RedisConnectionError, RedisTimeoutError) as error:
            await self.close(error)
        except (OSError, RuntimeError) as error:  # RuntimeError: uvloop, of a connection that was reset
            await self.close(RedisConnectionError(f"the connection was lost: {error}"))

    async def close(self, why: RedisError) -> None:
        self.lost = True
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()
        unanswered, self._unanswered = self._unanswered, deque()
        for reply in unanswered:
            _refuse(reply, why)
        await self._connection.disconnect(nowait=True)


def _give(reply: "asyncio.Future[Any]", value: Any) -> None:
    if not reply.done():  # who asked may have left
        reply.set_result(value)


def _refuse(reply: "asyncio.Future[Any]", error: RedisError) -> None:
    if not reply.done():
        reply.set_exception(error)
