"""One address before several servers, as a load balancer has: each connection goes to the next one that is there."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
    target.transport.abort()


class _Balancer:
    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = ports
        self._turns = count()
        self._writers: list[asyncio.StreamWriter] = []

    async def link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        turn = next(self._turns)
        for i in range(len(self._ports)):
            with suppress(OSError):
                answers, requests = await asyncio.open_connection(
                    "127.0.0.1", self._ports[(turn + i) % len(self._ports)]
                )
                self._writers.append(requests)
                await asyncio.gather(_copy(reader, requests), _copy(answers, writer))
                return
        writer.transport.abort()

    async def close(self, server: asyncio.Server) -> None:
        server.close()
        for writer in self._writers:
            writer.transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def balanced(ports: Sequence[int]) -> Iterator[int]:
    """The port of 127.0.0.1 that stands for `ports` of it."""
    loop, balancer = asyncio.new_event_loop(), _Balancer(ports)
    server = loop.run_until_complete(asyncio.start_server(balancer.link, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(balancer.close(server), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
