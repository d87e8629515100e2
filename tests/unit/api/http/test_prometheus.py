"""What a scrape gets of the devices that work."""

from api.http.prometheus import GaugeValues, ProcessMetrics
from jobs.protocol.hardware import NodeReading


def scrape(metrics: ProcessMetrics, **readings: list[NodeReading]) -> list[str]:
    text = metrics.render(GaugeValues({}, [], 0, readings=readings)).decode()
    return [line for line in text.splitlines() if line.startswith("shardyard_device_")]


def test_each_value_of_a_device_is_a_gauge() -> None:
    metrics = ProcessMetrics()
    reading = NodeReading(3, {"power_watts": 312.5, "utilisation": 0.9, "fans": 2.0}, {"xid_79": 1})
    assert sorted(scrape(metrics, n1=[reading])) == [
        'shardyard_device_errors{device="3",error="xid_79",node="n1"} 1.0',
        'shardyard_device_power_watts{device="3",node="n1"} 312.5',
        'shardyard_device_utilisation{device="3",node="n1"} 0.9',
    ]


def test_a_device_that_works_no_more_is_gone() -> None:
    metrics = ProcessMetrics()
    scrape(metrics, n1=[NodeReading(3, {"power_watts": 312.5}, {"xid_79": 1})])
    assert scrape(metrics) == []
