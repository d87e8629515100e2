"""A collector of traces: an HTTP server in this process that decodes what it gets, and answers as told."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class TraceReceiver(ThreadingHTTPServer):
    """`status` may be replaced at any time; spans count as taken where it is 200."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = 200
        self.requests: list[tuple[str, dict[str, str]]] = []  # path, headers by their names in lower case
        self.taken: list[Span] = []
        self.services: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def by_id(self) -> dict[bytes, Span]:
        return {span.span_id: span for span in self.taken}

    def named(self, name: str) -> list[Span]:
        return [span for span in self.taken if span.name == name]


class _Handler(BaseHTTPRequestHandler):
    server: TraceReceiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        if self.server.status == 200:
            for found in ExportTraceServiceRequest.FromString(body).resource_spans:
                named = {attribute.key: attribute.value for attribute in found.resource.attributes}
                self.server.services.add(named["service.name"].string_value)
                self.server.taken += [span for scope in found.scope_spans for span in scope.spans]
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def receiving_traces() -> Iterator[TraceReceiver]:
    with TraceReceiver() as receiver:
        thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join(30)


def attributes_of(span: Span) -> dict[str, str | int | list[str]]:
    found: dict[str, str | int | list[str]] = {}
    for attribute in span.attributes:
        kind = attribute.value.WhichOneof("value")
        if kind == "array_value":
            found[attribute.key] = [value.string_value for value in attribute.value.array_value.values]
        else:
            found[attribute.key] = getattr(attribute.value, str(kind))
    return found
