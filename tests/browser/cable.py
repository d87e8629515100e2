"""A connection that can be cut: what a browser sends to its port goes to a service, until somebody pulls the plug."""

import socket
import threading
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit


class Cable:
    """`url` is the service's, by way of this cable. While it is cut, nothing gets through, and nobody is told why."""

    def __init__(self, url: str) -> None:
        service = urlsplit(url)
        self._target = (service.hostname or "127.0.0.1", service.port or 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self._whole = True
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Cable":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def cut(self) -> None:
        self._whole = False
        for end in list(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._whole = True

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                browser, _ = self._listener.accept()
                if not self._whole:
                    browser.close()
                    continue
                service = socket.create_connection(self._target)
                for ends in ((browser, service), (service, browser)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        self._open.add(source)
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)
        source.close()
