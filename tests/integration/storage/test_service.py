"""The API as remote storage over lines that are cut, and beside services that are slow, full, or refuse."""

import os
import random
import socket
import ssl
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from jobs.storage.remote import (
    CHUNK_BYTES,
    RemoteError,
    RemoteFull,
    RemoteRefused,
    RemoteUnavailable,
    digest_file,
    fetch_file,
)
from jobs.storage.service import ServiceStorage
from tests.integration.storage.conftest import ServedNode, open_service
from tests.support.samples.certificates import make_certificate

pytestmark = pytest.mark.integration


class CuttingProxy:
    """Passes connections on to a port of this host, and resets each after so many bytes, in either direction; those
    that come when no more cuts are left stay whole."""

    def __init__(self, port: int, cuts: list[tuple[str, int]]) -> None:
        self._target, self._cuts = port, cuts
        self.passed = 0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._ends = [self._server]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        for thread in self._threads:  # more of both come until the first has ended
            for end in self._ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            thread.join(60)
        for end in self._ends:
            end.close()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target))
                except OSError:  # one that fails ends no other
                    client.close()
                    continue
                self._ends += (client, server)
                way, cut = self._cuts.pop(0) if self._cuts else ("", 0)
                self._start(self._pass_on, client, server, way, cut)

    def _pass_on(self, client: socket.socket, server: socket.socket, way: str, cut: int) -> None:
        pair = (("up", client, server), ("down", server, client))
        copiers = [
            threading.Thread(target=self._copy, args=(source, target, cut if name == way else None, name), daemon=True)
            for name, source, target in pair
        ]
        for copier in copiers:
            copier.start()
        for copier in copiers:
            copier.join()
        for end in (client, server):  # one that was only shut down takes what comes until its buffer is full
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()

    def _copy(self, source: socket.socket, target: socket.socket, limit: int | None, name: str) -> None:
        with suppress(OSError):
            while limit is None or limit > 0:
                data = source.recv(65_536 if limit is None else min(limit, 65_536))
                if not data:
                    break
                target.sendall(data)
                self.passed += len(data) if name == "up" else 0
                limit = None if limit is None else limit - len(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def cutting(served: ServedNode, cuts: list[tuple[str, int]]) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(int(served.url.rpartition(":")[2]), cuts)
    try:
        yield proxy
    finally:
        proxy.close()


def test_a_file_arrives_over_a_line_that_is_cut_anywhere_and_is_not_sent_twice(
    served_node: ServedNode, tmp_path: Path
) -> None:
    size = 3_000_000
    (tmp_path / "file").write_bytes(os.urandom(size))
    chosen = random.Random(1)
    cuts = [("up", chosen.randrange(1, size // 12)) for _ in range(8)] + [("down", chosen.randrange(1, 200))] * 2
    with cutting(served_node, cuts) as proxy:
        remote = served_node.storage(proxy.url)
        remote.put("a/b", tmp_path / "file", digest_file(tmp_path / "file"))
        assert cuts == []
        assert proxy.passed < 2 * size
    whole = served_node.storage()
    whole.base = remote.base
    assert whole.read("a/b", 0, CHUNK_BYTES) == (tmp_path / "file").read_bytes()
    assert whole.names("a") == ["a/b"]


@pytest.mark.slow
def test_a_large_file_travels_both_ways(served_node: ServedNode, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        for _ in range(100):
            file.write(os.urandom(1024 * 1024))
    remote, digest = served_node.storage(), digest_file(tmp_path / "file")
    remote.put("a/b", tmp_path / "file", digest)
    assert remote.size("a/b") == 100 * 1024 * 1024
    fetch_file(remote, "a/b", tmp_path / "fetched")
    assert digest_file(tmp_path / "fetched") == digest


def test_an_append_that_is_cut_anywhere_is_there_once(served_node: ServedNode) -> None:
    text = os.urandom(300_000)
    chosen = random.Random(2)
    cuts = [("up", chosen.randrange(1, 300_000)) for _ in range(3)] + [("down", 1), ("down", 60)]
    with cutting(served_node, cuts) as proxy:
        remote = served_node.storage(proxy.url)
        remote.append("log", 0, text)
        remote.append("log", len(text), text)
        remote.append("log", 2 * len(text), b"")
    whole = served_node.storage()
    whole.base = remote.base
    assert whole.read("log", 0, CHUNK_BYTES) == text + text


def test_a_read_that_is_cut_goes_on_where_it_was(served_node: ServedNode) -> None:
    text = os.urandom(1_000_000)
    whole = served_node.storage()
    whole.append("log", 0, text)
    chosen = random.Random(3)
    with cutting(served_node, [("down", chosen.randrange(1, 400_000)) for _ in range(6)]) as proxy:
        remote = served_node.storage(proxy.url)
        remote.base = whole.base
        assert remote.read("log", 0, CHUNK_BYTES) == text


def test_another_token_is_refused_for_good(served_node: ServedNode) -> None:
    for token in ("sy_aaaa_bbbb", "guess"):
        with pytest.raises(RemoteRefused, match="token"):
            open_service(served_node.url, token).append(f"{served_node.attempt}/log", 0, b"x")
    with pytest.raises(RemoteRefused, match="has no attempt"):
        open_service(served_node.url, served_node.token).append(f"jobs/default/{uuid.uuid4()}/1/log", 0, b"x")


def every_call(remote: ServiceStorage, file: Path) -> list[Callable[[], object]]:
    return [
        lambda: remote.append("a", 0, b"x"),
        lambda: remote.put("a", file, digest_file(file)),
        lambda: remote.size("a"),
        lambda: remote.read("a", 0, 1),
        lambda: remote.names("a"),
        lambda: remote.remove("a"),
    ]


def test_a_service_that_does_not_answer_fails_every_call_in_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        remote = open_service(f"http://127.0.0.1:{server.getsockname()[1]}", "t", call_seconds=0.2)
        for call in every_call(remote, tmp_path / "file"):
            began = time.monotonic()
            with pytest.raises(RemoteUnavailable):
                call()
            assert time.monotonic() - began < 30


@contextmanager
def answering(
    *answers: tuple[int, dict[str, str]], tls: tuple[Path, Path] | None = None
) -> Iterator[tuple[str, list[float]]]:
    """The address of a service that gives these answers, the last one again and again, and when it was asked."""
    asked: list[float] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers = answers[min(len(asked), len(answers) - 1)]
            asked.append(time.monotonic())
            self.send_response(status)
            for name, value in ({"Content-Length": "0"} | headers).items():
                self.send_header(name, value)
            self.end_headers()

        do_GET = do_HEAD = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_busy_service_is_asked_again_not_before_the_time_that_it_says() -> None:
    with answering((429, {"Retry-After": "1"}), (503, {}), (204, {"Upload-Offset": "1"})) as (url, asked):
        open_service(url, "t").append("a", 0, b"x")
        assert len(asked) == 3
        assert asked[1] - asked[0] >= 1
    with answering((503, {"Retry-After": "600"})) as (url, asked):
        with pytest.raises(RemoteUnavailable) as refused:
            open_service(url, "t").append("a", 0, b"x")
        assert (refused.value.retry_after, len(asked)) == (600, 1)


def test_a_full_service_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with answering((507, {"Retry-After": "30"})) as (url, asked):
        for call in every_call(open_service(url, "t"), tmp_path / "file")[:2]:
            with pytest.raises(RemoteFull) as full:
                call()
            assert full.value.retry_after == 30
        assert len(asked) == 2


def test_an_answer_of_something_else_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with answering((302, {"Location": "http://127.0.0.1:1/"})) as (url, _):
        for call in every_call(open_service(url, "t"), tmp_path / "file"):
            with pytest.raises(RemoteError):
                call()


def test_the_service_is_believed_only_with_a_certificate_of_the_authority(tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path / "tls")
    other, _ = make_certificate(tmp_path / "other")
    with answering((204, {"Upload-Offset": "1"}), tls=certificate) as (url, asked):
        open_service(url, "t", certificate[0]).append("a", 0, b"x")
        for authority in (other, None):
            with pytest.raises(RemoteUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                open_service(url, "t", authority, call_seconds=0.2).append("a", 0, b"x")
        assert len(asked) == 1
    with pytest.raises(ValueError, match="cannot be used"):
        ServiceStorage(url, "t", tmp_path / "nowhere")
