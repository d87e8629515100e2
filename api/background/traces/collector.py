"""Sends spans to a collector with the exporter of OpenTelemetry's library, and reports what became of them."""

import logging
from collections.abc import Sequence
from enum import Enum, auto
from importlib.metadata import version
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

#: Statuses of a collector that will not take the same spans at another time, either.
_FINAL = frozenset({400, 413, 422})


class SendOutcome(Enum):
    TAKEN = auto()
    REFUSED = auto()  # for good
    FAILED = auto()  # to be sent again


class TraceCollector:
    """Where spans go, by the variables of the environment. `last_answer` is how the last request ended, in words."""

    def __init__(self) -> None:
        """Raises:
        ValueError, OSError: what the variables say cannot be used.
        """
        # It logs each try as an error; we log what became of all of them.
        logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
        self._session = _NotingSession()
        self._exporter = OTLPSpanExporter(session=self._session)
        self.resource = _make_resource()

    @property
    def last_answer(self) -> str:
        return self._session.last_answer

    def send(self, spans: Sequence[ReadableSpan]) -> SendOutcome:
        """Within OTEL_EXPORTER_OTLP_TIMEOUT, by default ten seconds. Until then the library tries again by itself."""
        self._session.forget()
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            return SendOutcome.TAKEN
        return SendOutcome.REFUSED if self._session.last_status in _FINAL else SendOutcome.FAILED

    def close(self) -> None:
        """End a wait between two tries. To be called once."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


class _NotingSession(requests.Session):
    """Notes how each request has ended, which the exporter does not say."""

    def __init__(self) -> None:
        super().__init__()
        self.forget()

    def forget(self) -> None:
        self.last_status, self.last_answer = 0, "no request was sent"

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        self.last_status = 0
        try:
            response = super().request(*args, **kwargs)
        except Exception as error:
            self.last_answer = _name_error(error)
            raise
        self.last_status, self.last_answer = response.status_code, f"HTTP {response.status_code} {response.reason}"
        return response


def _name_error(error: Exception) -> str:
    """Without its text, in which the address of the request is: that may have a token in it."""
    cause = getattr(error.args[0], "reason", None) if error.args else None
    return type(error).__name__ + (f" ({type(cause).__name__})" if isinstance(cause, Exception) else "")


def _make_resource() -> Resource:
    """Of OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES; the name is `shardyard` where they have none."""
    own = Resource({SERVICE_NAME: "shardyard", SERVICE_VERSION: version("shardyard")})
    set_by_operator = Resource.create()
    if str(set_by_operator.attributes[SERVICE_NAME]).startswith("unknown_service"):
        return set_by_operator.merge(own)
    return own.merge(set_by_operator)
