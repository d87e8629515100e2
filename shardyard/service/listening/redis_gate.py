"""`python -m shardyard.service.listening.redis_gate`: Redis over TLS, for the machines that joined.

The embedded servers listen on unix sockets alone, and the program that ships with them has no TLS of its own. This
process ends the encryption and passes the bytes on: a connection to a port here is one to the socket behind it. Who
comes in has no right there before it has logged in with the password of a role; the user who may do everything has a
password that never leaves the data directory.

Sizes are bounded: bytes wait on the way only as far as the buffers of one read and one write go, a connection that does
not finish its handshake is closed, and so is one too many of an address.
"""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import uvloop

from api.http.exposure import UnsafeToStart
from api.http.tls import ServerCertificate
from jobs.support.descriptors import raise_descriptor_limit
from jobs.support.logging_config import configure_logging

log = structlog.get_logger("shardyard.redis_gate")

HANDSHAKE_SECONDS, SHUTDOWN_SECONDS, END_SECONDS = 10.0, 2.0, 2.0
#: Of one address, and of all: an attempt has a few connections, a node a dozen.
MAX_OF_ADDRESS, MAX_CONNECTIONS = 2048, 8192
READ_BYTES = 64 * 1024
RENEWAL_SECONDS = 5.0
#: A machine that has lost its power says no good-bye: its connections end after a minute.
KEEP_ALIVE = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}


@dataclass(frozen=True, slots=True)
class Passage:
    """A port of the address that leads to a socket of this machine."""

    port: int
    socket: Path

    @classmethod
    def parse(cls, text: str) -> "Passage":
        """`PORT=SOCKET`. Raises ValueError."""
        port, sign, path = text.partition("=")
        if not sign or not 0 < int(port) < 65_536:
            raise ValueError(f"{text!r} is not PORT=SOCKET")
        return cls(int(port), Path(path))


class RedisGate:
    """Both passages on one address, with one certificate."""

    def __init__(self, host: str, certificate: ServerCertificate) -> None:
        self._host = host
        self._certificate = certificate
        self._connections: Counter[str] = Counter()
        self._passing: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(self, passages: Sequence[Passage]) -> None:
        """Serve until SIGTERM. Raises OSError: an address cannot be listened on."""
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopped.set)
        servers = [await self.listen(passage) for passage in passages]
        log.info("listening", host=self._host, ports=[passage.port for passage in passages])
        while not stopped.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), RENEWAL_SECONDS)
            self._certificate.reload_renewed()
        for server in servers:
            server.close()
        log.info("stopped", open_connections=len(self._passing))
        await self.end_connections()

    async def end_connections(self) -> None:
        """End what is open: clients would never end by themselves."""
        for writer in self._passing.values():
            writer.transport.abort()
        if self._passing:
            await asyncio.wait(self._passing, timeout=END_SECONDS)

    async def listen(self, passage: Passage) -> asyncio.Server:
        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._passing[task] = writer
            try:
                await self._pass_on(passage, reader, writer)
            finally:
                del self._passing[task]

        return await asyncio.start_server(
            pass_on,
            self._host,
            passage.port,
            limit=READ_BYTES,
            ssl=self._certificate.context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )

    async def _pass_on(self, passage: Passage, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = str((writer.get_extra_info("peername") or ("?",))[0])
        if self._connections[address] >= MAX_OF_ADDRESS or self._connections.total() >= MAX_CONNECTIONS:
            log.warning("too_many_connections", address=address, open=self._connections[address])
            writer.transport.abort()
            return
        self._connections[address] += 1
        try:
            _keep_alive(writer)
            with contextlib.suppress(OSError):  # among them those of TLS; Redis may be away for a moment
                await _copy_both_ways(passage, reader, writer)
        finally:
            writer.transport.abort()
            self._connections[address] -= 1
            if not self._connections[address]:
                del self._connections[address]


async def _copy_both_ways(passage: Passage, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until either side ends: TLS knows no half of a connection."""
    replies, commands = await asyncio.open_unix_connection(passage.socket, limit=READ_BYTES)
    copies = [asyncio.ensure_future(_copy(reader, commands)), asyncio.ensure_future(_copy(replies, writer))]
    try:
        await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
        commands.transport.abort()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(READ_BYTES):
        target.write(data)
        await target.drain()


def _keep_alive(writer: asyncio.StreamWriter) -> None:
    line: Any = writer.get_extra_info("socket")
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in KEEP_ALIVE.items():
        line.setsockopt(socket.IPPROTO_TCP, option, value)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="redis_gate")
    parser.add_argument("host")
    parser.add_argument("chain", type=Path)
    parser.add_argument("key", type=Path)
    parser.add_argument("passages", type=Passage.parse, nargs="+", metavar="PORT=SOCKET")
    chosen = parser.parse_args(arguments)
    os.umask(0o077)
    configure_logging(os.environ.get("SHARDYARD_LOG_LEVEL", "INFO"))
    try:
        gate = RedisGate(chosen.host, ServerCertificate(chosen.chain, chosen.key))
        raise_descriptor_limit(2 * MAX_CONNECTIONS + 64)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(gate.serve(chosen.passages))
    except (UnsafeToStart, OSError) as error:
        log.error("cannot_start", error=str(error))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
