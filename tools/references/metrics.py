"""Every metric that `/metrics` has, from the registry that makes them."""

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric

from api.http.prometheus import ProcessMetrics


def text() -> str:
    rows = [
        f"| `{_name(metric)}` | {metric.type} | {_listed(labels)} | {metric.documentation} |"
        for metric, labels in _metrics()
    ]
    return (
        "# Metrics\n\n"
        "What `GET /metrics` has, in the format of Prometheus. [Prometheus and Grafana]"
        "(../operations.md#prometheus-and-grafana) says how to collect it, and has alerts and a dashboard.\n\n"
        + "\n".join(["| metric | type | labels | means |", "|---|---|---|---|", *rows])
        + "\n"
    )


def _metrics() -> list[tuple[Metric, tuple[str, ...]]]:
    """Each with the names of its labels. The registry shows those only of metrics that have a value already."""
    collectors = [
        collector
        for collector in ProcessMetrics()._registry._collector_to_names
        if isinstance(collector, MetricWrapperBase)
    ]
    found = [(next(iter(collector.describe())), tuple(collector._labelnames)) for collector in collectors]
    return sorted(found, key=lambda pair: pair[0].name)


def _listed(labels: tuple[str, ...]) -> str:
    return ", ".join(f"`{label}`" for label in labels)


def _name(metric: Metric) -> str:
    return f"{metric.name}_total" if metric.type == "counter" else metric.name
