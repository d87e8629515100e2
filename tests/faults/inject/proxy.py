"""A TCP proxy before a Redis that understands what it carries, so that faults can be aimed at a command.

proxy.add(Rule("finish", Act.DROP_REPLY))            # the next `finish` takes effect, and its caller never hears
proxy.add(Rule("renew_lease", Act.DELAY, seconds=2, times=5))
proxy.stall(); proxy.flow()                          # half-open: connected, and nothing moves
proxy.cut(); proxy.refuse(); proxy.accept()
"""

import asyncio
import socket
import struct
import threading
import weakref
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from urllib.parse import urlsplit

from tests.faults.inject.resp import end_of, name_of

READ_BYTES = 1 << 16
#: A script that Redis does not know yet has not run; the client sends it whole next.
NOT_LOADED = b"-NOSCRIPT"
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: close with RST


class Act(Enum):
    DELAY = auto()  # forward after `seconds`
    STALL = auto()  # never forward it, nor anything after it on this connection
    RESET = auto()  # do not forward it; the connection is reset
    CUT = auto()  # do not forward it; the connection is closed in an orderly way
    DROP_REPLY = auto()  # forward it, wait for the reply, throw that away, and reset the connection


@dataclass
class Rule:
    """What happens to commands called `name` (see `resp.name_of`; "" is every command): the first `skip` of them
    pass, the next `times` are acted on."""

    name: str
    act: Act
    skip: int = 0
    times: int = 1
    seconds: float = 0.0
    hits: int = field(default=0, init=False)
    seen: int = field(default=0, init=False)

    def takes(self, name: str) -> bool:
        if self.name not in ("", name):
            return False
        self.seen += 1
        if not self.skip < self.seen <= self.skip + self.times:
            return False
        self.hits += 1
        return True

    def missed(self) -> None:
        """What was taken had no effect: it does not count."""
        self.seen -= 1
        self.hits -= 1


@dataclass(eq=False)
class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    down: asyncio.StreamWriter
    up: asyncio.StreamWriter
    owed: deque[Rule | None] = field(default_factory=deque)  # of each reply to come, the rule that drops it


class Proxy:
    """Listens on `host` and a free port, in a thread of its own; `url` is what clients are given."""

    def __init__(self, upstream: str, host: str = "127.0.0.1") -> None:
        """`upstream`: unix://... or redis://host:port"""
        self._upstream = urlsplit(upstream)
        self._rules: list[Rule] = []
        self._links: set[_Link] = set()
        self._writers: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()
        self._refusing = False
        self.commands: Counter[str] = Counter()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._listener = socket.create_server((host, 0))
        self.url = f"redis://{host}:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(60)

    # -- what a test says ------------------------------------------------------------------------------

    def add(self, rule: Rule) -> Rule:
        self._call(lambda: self._rules.append(rule))
        return rule

    def clear(self) -> None:
        """Forget all rules. What a rule has stalled stays so until its connection ends."""
        self._call(self._rules.clear)

    def stall(self) -> None:
        """Nothing moves on any connection, and new ones are accepted all the same."""
        self._call(self._flowing.clear)

    def flow(self) -> None:
        self._call(self._flowing.set)

    def cut(self, *, reset: bool = False) -> None:
        """End all connections."""

        def end() -> None:
            for link in list(self._links):
                self._end(link, reset=reset)

        self._call(end)

    def refuse(self) -> None:
        """End all connections, and every new one at once."""
        self._refusing = True
        self.cut(reset=True)

    def accept(self) -> None:
        self._refusing = False

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def connections(self) -> int:
        return len(self._links)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def _call(self, work: Callable[[], object]) -> None:
        """Do it in the proxy's thread, and wait until it is done."""

        async def there() -> None:
            work()

        asyncio.run_coroutine_threadsafe(there(), self._loop).result(60)

    # -- the proxy's thread ----------------------------------------------------------------------------

    async def _serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._accepted, sock=self._listener)

    async def _close(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()  # one that closes waits until the other side has read
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self._refusing:
            _close(writer, reset=True)
            return
        try:
            answers, up = await self._connect()
        except OSError:
            _close(writer, reset=True)
            return
        self._writers.add(up)
        link = _Link(writer, up)
        self._links.add(link)
        ways = [
            asyncio.ensure_future(self._requests(link, reader)),
            asyncio.ensure_future(self._replies(link, answers)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the proxy closes; asyncio's streams would print it
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._end(link)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._upstream.scheme == "unix":
            return await asyncio.open_unix_connection(self._upstream.path)
        return await asyncio.open_connection(self._upstream.hostname, self._upstream.port)

    async def _requests(self, link: _Link, reader: asyncio.StreamReader) -> None:
        async for command in _values(reader):
            name = name_of(command)
            self.commands[name] += 1
            rule = next((rule for rule in self._rules if rule.takes(name)), None)
            match rule.act if rule is not None else None:
                case Act.DELAY if rule is not None:
                    await asyncio.sleep(rule.seconds)
                case Act.STALL:
                    await asyncio.Event().wait()
                case Act.RESET | Act.CUT as act:
                    self._end(link, reset=act is Act.RESET)
                    return
            await self._flowing.wait()
            link.owed.append(rule if rule is not None and rule.act is Act.DROP_REPLY else None)
            link.up.write(command)
            await link.up.drain()

    async def _replies(self, link: _Link, reader: asyncio.StreamReader) -> None:
        async for reply in _values(reader):
            await self._flowing.wait()
            rule = link.owed.popleft() if link.owed else None  # messages of a subscription are owed by no command
            if rule is not None and reply.startswith(NOT_LOADED):
                rule.missed()
            elif rule is not None:
                self._end(link, reset=True)
                return
            link.down.write(reply)
            await link.down.drain()

    def _end(self, link: _Link, *, reset: bool = False) -> None:
        self._links.discard(link)
        _close(link.down, reset=reset)
        _close(link.up, reset=False)


async def _values(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Each value that comes, as it came, until the other side ends the connection."""
    buffer = b""
    with suppress(ConnectionError):
        while data := await reader.read(READ_BYTES):
            buffer += data
            at = 0
            while at < len(buffer) and (end := end_of(buffer, at)) is not None:
                yield buffer[at:end]
                at = end
            buffer = buffer[at:]


def _close(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    raw = writer.get_extra_info("socket")
    if reset and raw is not None and raw.fileno() >= 0:
        with suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        writer.transport.abort()
    else:
        writer.close()


@contextmanager
def proxied(upstream: str, host: str = "127.0.0.1") -> Iterator[Proxy]:
    proxy = Proxy(upstream, host)
    try:
        yield proxy
    finally:
        proxy.close()
