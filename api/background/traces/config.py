"""Whether traces are sent: OpenTelemetry's own variables say so, and where to. Its library reads all the others."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from api.background.traces.collector import TraceCollector

#: The one that is for traces alone comes first, as it does in the library.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"


def open_trace_collector() -> "TraceCollector | None":
    """Where this process sends traces, by its environment; None where they are off. The library is imported where they
    are on.

    Raises:
        ValueError: what is set cannot be used, or the library is not installed; the message says what to do.
        OSError: a certificate cannot be read.
    """
    if not are_traces_on(os.environ):
        return None
    try:
        from api.background.traces.collector import TraceCollector
    except ImportError as error:
        named = _first_set(os.environ, ENDPOINTS)
        message = f'{named} is set, but OpenTelemetry is not installed: pip install "shardyard[otel]" ({error})'
        raise ValueError(message) from error
    return TraceCollector()


def are_traces_on(environment: Mapping[str, str]) -> bool:
    """Whether an endpoint is set, and traces are not switched off.

    Raises:
        ValueError: what is set cannot be used; the message says what to set.
    """
    named = _first_set(environment, ENDPOINTS)
    if not named or environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environment.get("OTEL_TRACES_EXPORTER", "").strip() == "none":
        return False
    if not environment[named].startswith(("http://", "https://")):
        raise ValueError(f"{named} must begin with http:// or https://, for example http://localhost:4318")
    protocol = _first_set(environment, PROTOCOLS)
    if protocol and environment[protocol].strip() != PROTOCOL:
        raise ValueError(f"{protocol} must be {PROTOCOL}: traces are sent over HTTP, to which port 4318 belongs")
    return True


def _first_set(environment: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((name for name in names if environment.get(name)), "")
