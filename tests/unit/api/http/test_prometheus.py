"""What a scrape gets of the devices that work."""

from api.http.prometheus import GaugeValues, ProcessMetrics
from jobs.protocol.hardware import NodeReading
from shardyard.contract.fleet import BlockView, EngineView, PoolView


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


def test_the_boxes_of_a_pools_live_nodes_are_counted_by_level() -> None:
    metrics = ProcessMetrics()
    pool = PoolView(name="a100", nodes=4, live_nodes=3, boxes={"none": 1, "user": 2, "full": 0}, unboxed=1)
    text = metrics.render(GaugeValues({}, [pool], 0)).decode()
    assert 'shardyard_node_boxes{level="user",pool="a100"} 2.0' in text
    assert 'shardyard_node_boxes{level="full",pool="a100"} 0.0' in text
    assert 'shardyard_unboxed_nodes{pool="a100"} 1.0' in text


def test_a_device_that_works_no_more_is_gone() -> None:
    metrics = ProcessMetrics()
    scrape(metrics, n1=[NodeReading(3, {"power_watts": 312.5}, {"xid_79": 1})])
    assert scrape(metrics) == []


def test_a_pool_that_is_gone_leaves_the_metrics() -> None:
    monitoring = ProcessMetrics()
    pool = PoolView(
        name="a100",
        devices=8,
        free=5,
        leased=2,
        quarantined=1,
        largest_node=8,
        nodes=1,
        live_nodes=1,
        queued=3,
        engine=EngineView(name="slurm", blocks=[BlockView(id="7", nodes=1, state="pending")]),
    )
    text = monitoring.render(GaugeValues({"queued": 3}, [pool], 0, wanted_nodes={"a100": 2})).decode()
    assert 'shardyard_devices{pool="a100",state="free"} 5.0' in text
    assert 'shardyard_queued_jobs{pool="a100"} 3.0' in text
    assert 'shardyard_pool_wanted_nodes{pool="a100"} 2.0' in text
    assert 'shardyard_pool_blocks{pool="a100",state="pending"} 1.0' in text
    assert 'shardyard_nodes{pool="a100",state="live"} 1.0' in text
    assert 'shardyard_jobs{state="queued"} 3.0' in text
    assert "a100" not in monitoring.render(GaugeValues({}, [], 0)).decode()
