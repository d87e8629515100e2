"""Whether traces are on, and what is wrong with what is set."""

import sys

import pytest

from api.background.traces.config import are_traces_on, open_trace_collector

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("environment", "on"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        (ENDPOINT, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://collector/v1/traces"}, True),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, False),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_an_endpoint_switches_traces_on(environment: dict[str, str], on: bool) -> None:
    assert are_traces_on(environment) is on


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL must be http/protobuf"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT must begin with http://"),
    ],
)
def test_what_cannot_be_used_is_named(more: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        are_traces_on(ENDPOINT | more)


def test_without_the_library_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    monkeypatch.delitem(sys.modules, "api.background.traces.collector", raising=False)
    with pytest.raises(ValueError, match=r'OTEL_EXPORTER_OTLP_ENDPOINT is set, .*pip install "shardyard\[otel\]"'):
        open_trace_collector()
