"""Runs the commands of many tasks on one connection: those that arrive while a batch is on its way are the next batch.

A connection for each task takes redis-py several times as long, and Redis syncs its log for each. Nothing that blocks,
such as XREAD BLOCK, may be sent here, since all others would wait for it.
"""

import asyncio
from collections import deque
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from jobs.store.call import Word

#: A batch has a deadline as a whole, so it is bounded; so are the commands that wait, far above what requests send.
MAX_BATCH, MAX_WAITING = 256, 10_000

Waiting = tuple[tuple[Word, ...], asyncio.Future[Any]]


class SharedConnection:
    """One connection of redis-py with the settings of `client`, whose `socket_timeout` a whole batch has here.

    A batch that fails with its connection is sent again, without the commands that were answered, as often as the
    settings say; so commands must be idempotent. When that fails too, Redis is away: all that wait fail at once.
    """

    def __init__(self, client: "Redis") -> None:
        settings = client.connection_pool.connection_kwargs
        self._seconds: float | None = settings.get("socket_timeout")
        # Without a timeout of its own, for which redis-py makes a task for each batch that it sends.
        self._connection = client.connection_pool.connection_class(**settings | {"socket_timeout": None})
        self._waiting: deque[Waiting] = deque()
        self._sent: deque[Waiting] = deque()
        self._sender: asyncio.Task[None] | None = None

    async def execute(self, *command: Word) -> Any:
        """Raises:
        redis.exceptions.RedisError: the server's own error, or that the connection failed every time.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise RedisConnectionError(f"{MAX_WAITING} commands wait for Redis already")
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, reply))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send_batches())
        return await reply

    async def close(self) -> None:
        if self._sender is not None:
            self._sender.cancel()
        self._fail_all(RedisConnectionError("the connection was closed"))
        await self._connection.disconnect()

    async def _send_batches(self) -> None:
        try:
            while self._waiting:
                self._sent.extend(self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_BATCH)))
                await self._connection.retry.call_with_retry(self._exchange, self._disconnect)
        except Exception as error:  # noqa: BLE001  (raised where the commands come from)
            self._fail_all(error)
        finally:
            self._sender = None

    def _fail_all(self, error: Exception) -> None:
        for _, reply in (*self._sent, *self._waiting):
            if not reply.done():
                reply.set_exception(error)
        self._sent.clear()
        self._waiting.clear()

    async def _exchange(self) -> None:
        """Send what is not answered of the batch."""
        try:
            async with asyncio.timeout(self._seconds):
                # hiredis packs any number of words, though its types say one.
                packed = b"".join(hiredis.pack_command(command) for command, _ in self._sent)  # type: ignore[arg-type]
                await self._connection.send_packed_command(packed, check_health=False)
                while self._sent:
                    await self._read_reply(self._sent[0][1])
                    self._sent.popleft()
        except TimeoutError:
            raise RedisTimeoutError(f"Redis did not answer within {self._seconds} s") from None

    async def _read_reply(self, reply: asyncio.Future[Any]) -> None:
        """`reply` may be done: then the task that asked was cancelled."""
        try:
            found = await self._connection.read_response()
        except ResponseError as error:
            if not reply.done():
                reply.set_exception(error)
        else:
            if not reply.done():
                reply.set_result(found)

    async def _disconnect(self, _: Exception) -> None:
        await self._connection.disconnect(nowait=True)
