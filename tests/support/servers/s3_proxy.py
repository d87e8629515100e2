"""A proxy before an S3 server that is slow, refuses, is full, or lists what was there before, when a test says so."""

import http.client
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import sleep
from urllib.parse import urlsplit

METHODS = frozenset({"GET", "HEAD", "PUT", "POST", "DELETE"})
_HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length"}
_ENTRY = re.compile(rb"<Contents>.*?</Contents>", re.DOTALL)
_KEY = re.compile(rb"<Key>(.*?)</Key>")


class S3Proxy:
    """`delay`: seconds before each request. `refusal`: status and code that requests of `refused` methods get.
    `hidden`: what matches it is in no list. `requests` counts them: by method, and "LIST"; `asked` has all of them."""

    def __init__(self, upstream: str) -> None:
        self.delay = 0.0
        self.refusal: tuple[int, str] | None = None
        self.refused = METHODS
        self.hidden: re.Pattern[bytes] | None = None
        self.requests: Counter[str] = Counter()
        self.asked: list[str] = []
        self._upstream = urlsplit(upstream)
        self._lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def log_request(self, *_: object) -> None:
                return

        def answer(handler: BaseHTTPRequestHandler) -> None:
            self.answer(handler)

        for method in METHODS:
            setattr(Handler, f"do_{method}", answer)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    def heal(self) -> None:
        self.delay, self.refusal, self.hidden = 0.0, None, None
        self.refused = METHODS

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        is_list = handler.command == "GET" and "list-type=2" in handler.path
        with self._lock:
            self.requests["LIST" if is_list else handler.command] += 1
            self.asked.append(f"{handler.command} {handler.path}")
        sleep(self.delay)
        if self.refusal is not None and handler.command in self.refused:
            status, code = self.refusal
            self._send(handler, status, {}, f"<Error><Code>{code}</Code></Error>".encode())
            return
        upstream = http.client.HTTPConnection(self._upstream.hostname or "", self._upstream.port, timeout=60)
        try:
            upstream.request(handler.command, handler.path, body, dict(handler.headers))
            answer = upstream.getresponse()
            data = answer.read()
        finally:
            upstream.close()
        if is_list and self.hidden is not None:
            data = _ENTRY.sub(self._without_hidden, data)
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP}
        length = answer.getheader("content-length") if handler.command == "HEAD" else None
        self._send(handler, answer.status, headers, data, length)

    def _without_hidden(self, entry: re.Match[bytes]) -> bytes:
        key = _KEY.search(entry[0])
        assert key is not None
        assert self.hidden is not None
        return b"" if self.hidden.search(key[1]) else entry[0]

    def _send(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        headers: dict[str, str],
        data: bytes,
        length: str | None = None,
    ) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", length or str(len(data)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(data)


@contextmanager
def s3_proxy(upstream: str) -> Iterator[S3Proxy]:
    proxy = S3Proxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
