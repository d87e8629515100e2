"""TLS in front of a test's Redis, whose server has none: ends the encryption and passes the bytes on to its socket."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # the errors of TLS are among them
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
    target.transport.abort()  # a farewell would be waited for


@contextmanager
def tls_front(socket: str, certificate: tuple[Path, Path], trusted: Path) -> Iterator[int]:
    """The port of 127.0.0.1 that it listens on. Clients must have the certificate in `trusted`, or one made by it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.load_verify_locations(trusted)
    context.verify_mode = ssl.CERT_REQUIRED
    loop = asyncio.new_event_loop()
    writers: list[asyncio.StreamWriter] = []

    async def link(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replies, commands = await asyncio.open_unix_connection(socket)
        writers.extend((writer, commands))
        await asyncio.gather(_copy(reader, commands), _copy(replies, writer))

    async def close() -> None:
        server.close()
        for writer in writers:
            writer.transport.abort()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    server = loop.run_until_complete(asyncio.start_server(link, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(close(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
