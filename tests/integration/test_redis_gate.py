"""Redis over TLS: the gate passes bytes to the server's socket for whoever speaks TLS, as long as both ends live."""

import asyncio
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from api.http.tls import ServerCertificate
from shardyard.service.listening import redis_gate
from shardyard.service.listening.certificates import ServiceCertificates, keep_certificates
from shardyard.service.listening.listener import _free_ports
from tests.acceptance.harness import wait_until
from tests.support.servers.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.integration

SECONDS = 60.0
NEVER = Retry(NoBackoff(), 0)


class Gate:
    """A gate before a Redis, as a process."""

    def __init__(self, directory: Path, server: RedisServer) -> None:
        self.certificates: ServiceCertificates = keep_certificates(directory / "tls", ("127.0.0.1",))
        (self.port,) = _free_ports("127.0.0.1", 1)
        where = server.url.removeprefix("unix://")
        files = (str(self.certificates.chain), str(self.certificates.key))
        module = [sys.executable, "-P", "-m", "shardyard.service.listening.redis_gate"]
        self.process = subprocess.Popen([*module, "127.0.0.1", *files, f"{self.port}={where}"])
        wait_until(self._answers, SECONDS)

    def client(self, **options: object) -> redis.Redis:
        url = f"rediss://127.0.0.1:{self.port}?ssl_ca_certs={self.certificates.authority}"
        return redis.Redis.from_url(url, socket_timeout=SECONDS, driver_info=None, **options)

    def _answers(self) -> bool:
        assert self.process.poll() is None
        with suppress(redis.ConnectionError), self.client() as client:
            return bool(client.ping())
        return False

    def served(self) -> bytes:
        """The certificate that a new connection gets."""
        context = ssl.create_default_context(cafile=str(self.certificates.authority))
        with (
            socket.create_connection(("127.0.0.1", self.port), SECONDS) as line,
            context.wrap_socket(line, server_hostname="127.0.0.1") as secured,
        ):
            return secured.getpeercert(binary_form=True) or b""

    def close(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(SECONDS)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def gate(tmp_path: Path, server: RedisServer) -> Iterator[Gate]:
    gate = Gate(tmp_path, server)
    yield gate
    if gate.process.poll() is None:
        gate.close()


def test_commands_and_large_values_pass_in_both_directions(gate: Gate) -> None:
    body = bytes(range(256)) * 65_536
    with gate.client() as client, client.pipeline(transaction=False) as pipeline:
        assert client.set("k", body)
        assert client.get("k") == body
        for number in range(10_000):
            pipeline.set(f"n{number}", number)
        assert all(pipeline.execute())


def test_who_speaks_no_tls_gets_no_answer_and_the_next_one_does(gate: Gate) -> None:
    with (
        redis.Redis(port=gate.port, socket_timeout=SECONDS, retry=NEVER) as client,
        pytest.raises(redis.ConnectionError),
    ):
        client.ping()
    with gate.client() as client:
        assert client.ping()


def test_a_server_that_dies_ends_its_connections_and_is_found_again(gate: Gate, server: RedisServer) -> None:
    with gate.client(retry=NEVER) as client:
        assert client.ping()
        server.kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.start()
        assert client.ping()


def test_it_ends_when_it_is_told_to_though_somebody_is_connected(gate: Gate) -> None:
    with gate.client(retry=NEVER) as client:
        assert client.ping()
        assert gate.close() == 0
        with pytest.raises(redis.ConnectionError):
            client.ping()


def test_new_connections_get_the_renewed_certificate_and_old_ones_stay(gate: Gate) -> None:
    first = gate.served()
    with gate.client(retry=NEVER) as client:
        connection = client.connection_pool.get_connection()
        keep_certificates(gate.certificates.chain.parent, ("127.0.0.1", "10.0.0.9"))
        wait_until(lambda: gate.served() != first, SECONDS)
        connection.send_command("PING")
        assert connection.read_response() == b"PONG"
        client.connection_pool.release(connection)


def test_an_address_has_so_many_connections_and_no_more(
    tmp_path: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_gate, "MAX_OF_ADDRESS", 2)
    made = keep_certificates(tmp_path / "tls", ("127.0.0.1",))
    context = ssl.create_default_context(cafile=str(made.authority))

    async def connect(port: int) -> asyncio.StreamWriter | None:
        """A connection that was answered."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"PING\r\n")
        with suppress(ConnectionError):
            if await asyncio.wait_for(reader.read(7), SECONDS) == b"+PONG\r\n":
                return writer
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return None

    async def run() -> None:
        gate = redis_gate.RedisGate("127.0.0.1", ServerCertificate(made.chain, made.key))
        socket_path = Path(server.url.removeprefix("unix://"))
        listening = await gate.listen(redis_gate.Passage(_free_ports("127.0.0.1", 1)[0], socket_path))
        port = listening.sockets[0].getsockname()[1]
        held = [await connect(port) for _ in range(2)]
        assert await connect(port) is None
        first = held.pop(0)
        assert first is not None
        first.close()
        async with asyncio.timeout(SECONDS):
            while (writer := await connect(port)) is None:
                await asyncio.sleep(0.01)
        listening.close()
        await gate.end_connections()
        for each in (writer, *held):
            assert each is not None
            each.close()
            with suppress(OSError):
                await each.wait_closed()

    asyncio.run(run())
