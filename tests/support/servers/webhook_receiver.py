"""A receiver of webhooks: an HTTP or HTTPS server in this process that keeps what it gets, and answers as told."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from shardyard.contract.webhooks import WebhookEvent


@dataclass(frozen=True)
class ReceivedRequest:
    path: str
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def event(self) -> WebhookEvent:
        return msgspec.json.decode(self.body, type=WebhookEvent)


Answer = Callable[[ReceivedRequest, asyncio.StreamWriter], Awaitable[None]]


def status(code: int, *headers: str, body: bytes = b"") -> Answer:
    """Answers with a status, at once."""

    async def answer(_: ReceivedRequest, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {code} Said", f"Content-Length: {len(body)}", "Connection: close", *headers]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        await writer.drain()

    return answer


class Receiver:
    """`answer` may be replaced at any time."""

    def __init__(self) -> None:
        self.requests: list[ReceivedRequest] = []
        self.connections = 0
        self.answer: Answer = status(204)
        self.port = 0
        self._grown = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def events(self) -> list[WebhookEvent]:
        return [request.event for request in self.requests]

    async def wait_for(self, count: int, seconds: float = 60.0) -> list[ReceivedRequest]:
        """Once there are so many requests."""
        async with asyncio.timeout(seconds), self._grown:
            await self._grown.wait_for(lambda: len(self.requests) >= count)
        return self.requests

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            request = await self._read(reader)
            async with self._grown:
                self.requests.append(request)
                self._grown.notify_all()
            await self.answer(request, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the sender has hung up, or the test is over
        finally:
            writer.close()

    async def end(self) -> None:
        """Drop all connections, those that were only just accepted too."""
        await _run_callbacks()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await _run_callbacks()

    @staticmethod
    async def _read(reader: asyncio.StreamReader) -> ReceivedRequest:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in head[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        return ReceivedRequest(head[0].split(" ")[1], headers, body)


async def _run_callbacks() -> None:
    """Let the loop do what is due: a connection is accepted, and closed, in a few of its rounds."""
    for _ in range(5):
        await asyncio.sleep(0)


@asynccontextmanager
async def receiving(*, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", port, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        await receiver.end()
