"""HTTPS by a real API process, as clients and browsers meet it."""

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardyard.client import Client
from shardyard.client.transport import trust_certificate
from shardyard.contract.errors import Unavailable
from tests.integration.api.conftest import ADMIN
from tests.integration.api.system.test_process import Process, api_process, until
from tests.support.samples.certificates import make_certificate
from tests.support.servers.redis_server import redis_server

pytestmark = pytest.mark.integration


@contextmanager
def serving(directory: Path, chain: Path) -> Iterator[Process]:
    """It listens on every address, since it has a certificate."""
    files = {"TLS_CERT": str(chain), "TLS_KEY": str(chain.with_suffix(".key"))}
    options = {"appendonly": "yes", "appendfsync": "always"}
    with (
        redis_server(directory / "redis", **options) as redis,
        api_process(directory, redis.url, HOST="0.0.0.0", **files) as process,
    ):
        yield process


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificate(tmp_path_factory.mktemp("tls"))[0]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory, chain: Path) -> Iterator[Process]:
    with serving(tmp_path_factory.mktemp("api"), chain) as process:
        yield process


def connect(process: Process, context: ssl.SSLContext) -> ssl.SSLSocket:
    connection = socket.create_connection(("127.0.0.1", process.port()), timeout=30)
    return context.wrap_socket(connection, server_hostname="localhost")


def served_certificate(process: Process) -> str:
    return ssl.get_server_certificate(("127.0.0.1", process.port()), timeout=30)


def test_a_client_that_is_told_the_authority_uses_the_service_and_any_other_is_told_how(
    process: Process, chain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"https://127.0.0.1:{process.port()}"
    with Client(url, ADMIN, attempts=1) as client, pytest.raises(Unavailable, match=r"self-signed.*SSL_CERT_FILE"):
        client.pools()
    monkeypatch.setenv("SSL_CERT_FILE", str(chain))
    with Client(url, ADMIN, attempts=1) as client:
        assert client.pools() == []
        assert client.create_token("ci").tenant == "default"


def test_a_client_that_trusts_one_certificate_takes_no_other(process: Process, chain: Path, tmp_path: Path) -> None:
    with connect(process, trust_certificate(chain)) as connection:
        assert connection.version() == "TLSv1.3"
    other, _ = make_certificate(tmp_path / "other")
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(process, trust_certificate(other))


def test_plain_http_is_not_answered(process: Process) -> None:
    with socket.create_connection(("127.0.0.1", process.port()), timeout=30) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert not connection.recv(4096).startswith(b"HTTP/")


def test_the_cookie_of_a_session_is_for_tls_alone(process: Process, chain: Path) -> None:
    port = process.port()
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=trust_certificate(chain))
    for headers in ({"Origin": f"https://127.0.0.1:{port}"}, {}):
        connection.request("POST", "/v1/sign-in", f'{{"token": "{ADMIN}"}}', headers)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (204, b"")
        cookie = answer.headers["set-cookie"]
        assert {"Secure", "HttpOnly", "SameSite=strict"} <= set(cookie.split("; "))
    session = {"Cookie": cookie.partition(";")[0], "Origin": f"https://127.0.0.1:{port}"}
    connection.request("POST", "/v1/tokens", '{"name": "ci", "scopes": ["read"]}', session)
    assert connection.getresponse().status == 201
    connection.close()


def test_a_renewed_certificate_is_served_without_a_restart(process: Process, chain: Path) -> None:
    before = served_certificate(process)
    with connect(process, trust_certificate(chain)) as connection:
        make_certificate(chain.parent)
        until(lambda: served_certificate(process) != before)
        assert served_certificate(process).split() == chain.read_text().split()
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200"), "a connection that is open stays so"


def test_a_connection_that_is_open_does_not_hold_up_the_end(tmp_path: Path, chain: Path) -> None:
    with serving(tmp_path, chain) as process, connect(process, trust_certificate(chain)) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        assert process.end() == 0
        assert process.events()[-1]["event"] == "stopped"
        assert not [event for event in process.events() if event.get("level") in ("error", "critical")]
