"""Runs the commands of many tasks on one connection: those that arrive while a batch is on its way are the next batch.

A connection for each task takes redis-py several times as long, and Redis syncs its log for each. Nothing that blocks,
such as XREAD BLOCK, may be sent here, since all others would wait for it.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.asyncio.sentinel import SentinelManagedConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from jobs.store.call import Word
from jobs.store.connections.confirmation import NotConfirmed, wait_command

#: A batch has a deadline as a whole, so it is bounded; so are the commands that wait, far above what requests send.
MAX_BATCH, MAX_WAITING = 256, 10_000


@dataclass(frozen=True, slots=True)
class _WaitingCommand:
    """A command, the reply that a task waits for, and whether the command may change something."""

    command: tuple[Word, ...]
    reply: asyncio.Future[Any]
    writes: bool

    def settle(self, found: Any) -> None:
        """Give what came, which may be an error, to the task; one that was cancelled does not want it."""
        if self.reply.done():
            return
        if isinstance(found, Exception):
            self.reply.set_exception(found)
        else:
            self.reply.set_result(found)


class SharedConnection:
    """One connection of redis-py with the settings of `client`, whose `socket_timeout` a whole batch has here.

    A batch that fails with its connection is sent again, without the commands that were answered, as often as the
    settings say; so commands must be idempotent. When that fails too, Redis is away: all that wait fail at once.

    Where `replicas` must have each change, a batch with changes is answered as a whole when they have it.
    """

    def __init__(self, client: "Redis", replicas: int = 0) -> None:
        self._replicas = replicas
        settings = client.connection_pool.connection_kwargs
        self._seconds: float | None = settings.get("socket_timeout")
        # Without a timeout of its own, for which redis-py makes a task for each batch that it sends.
        self._connection = client.connection_pool.connection_class(**settings | {"socket_timeout": None})
        self._waiting: deque[_WaitingCommand] = deque()
        self._sent: deque[_WaitingCommand] = deque()
        self._sender: asyncio.Task[None] | None = None

    async def execute(self, *command: Word, writes: bool = True) -> Any:
        """Raises:
        redis.exceptions.RedisError: the server's own error, or that the connection failed every time.
        NotConfirmed: too few replicas have the change.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise RedisConnectionError(f"{MAX_WAITING} commands wait for Redis already")
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_WaitingCommand(command, reply, writes))
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
        for waiting in (*self._sent, *self._waiting):
            waiting.settle(error)
        self._sent.clear()
        self._waiting.clear()

    async def _exchange(self) -> None:
        """Send what is not answered of the batch."""
        confirming = bool(self._replicas) and any(waiting.writes for waiting in self._sent)
        commands = [waiting.command for waiting in self._sent]
        if confirming:
            commands.append(wait_command(self._replicas))
        try:
            async with asyncio.timeout(self._seconds):
                # hiredis packs any number of words, though its types say one.
                packed = b"".join(hiredis.pack_command(command) for command in commands)  # type: ignore[arg-type]
                if isinstance(self._connection, SentinelManagedConnection):
                    # redis-py would connect without asking the Sentinels when it sends.
                    await self._connection.connect()  # type: ignore[no-untyped-call]
                await self._connection.send_packed_command(packed, check_health=False)
                await (self._read_confirmed() if confirming else self._read_replies())
        except TimeoutError:
            raise RedisTimeoutError(f"Redis did not answer within {self._seconds} s") from None

    async def _read_replies(self) -> None:
        while self._sent:
            self._sent[0].settle(await self._read_reply())
            self._sent.popleft()

    async def _read_confirmed(self) -> None:
        """Nothing is answered before all is: what is lost meanwhile, with the server perhaps, is sent again."""
        found = [await self._read_reply() for _ in self._sent]
        had = await self._read_reply()
        missing = had if isinstance(had, Exception) else NotConfirmed(had, self._replicas)
        is_missing = isinstance(had, Exception) or had < self._replicas
        for waiting, reply in zip(self._sent, found, strict=True):
            failed = is_missing and waiting.writes and not isinstance(reply, Exception)
            waiting.settle(missing if failed else reply)
        self._sent.clear()

    async def _read_reply(self) -> Any:
        """The reply, or the error that it is."""
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error

    async def _disconnect(self, _: Exception) -> None:
        await self._connection.disconnect(nowait=True)
