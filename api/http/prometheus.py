"""Metrics for Prometheus: requests as they are answered, and the fleet and the queue at the time of a scrape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from jobs.protocol.hardware import NodeReading
from jobs.support.disk_space import DiskSpace
from shardyard.contract.fleet import PoolView
from shardyard.contract.hardware import SERIES_TITLES

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_DEVICE = ("node", "device")
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "PUT", "PATCH", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class GaugeValues:
    """What the gauges show."""

    jobs: dict[str, int]  # state -> jobs of one tenant
    pools: list[PoolView]
    waiting: int  # requests that are held until a status changes
    streams: int = 0  # streams of events that are open
    readings: Mapping[str, Sequence[NodeReading]] = field(default_factory=dict)  # of devices that work, by node
    disks: Sequence[DiskSpace] = ()  # that the API process needs
    audit_waiting: int = 0  # entries of the audit that are not written
    wanted_nodes: Mapping[str, int] = field(default_factory=dict)  # by pool


class ProcessMetrics:
    media_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        labels = ("method", "route", "status")
        self._requests = Counter("shardyard_requests", "Answers given", labels, registry=registry)
        self._seconds = Histogram(
            "shardyard_request_seconds",
            "Time until the last byte of an answer",
            ("method", "route"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._jobs = Gauge("shardyard_jobs", "Jobs by state", ("state",), registry=registry)
        self._waiting = Gauge("shardyard_waiting_requests", "Requests held until a status changes", registry=registry)
        self._streams = Gauge("shardyard_event_streams", "Streams of events that are open", registry=registry)
        self._audit = Gauge("shardyard_audit_waiting", "Entries of the audit that are not written", registry=registry)
        self._history = Counter(
            "shardyard_control_redis_went_back",
            "How often the control Redis was found to have less than before",
            registry=registry,
        )
        self._pools = PoolGauges(registry)
        self._disks = {
            name: Gauge(f"shardyard_disk_{name}_bytes", title, ("disk",), registry=registry)
            for name, title in (
                ("free", "Free space of a disk that the API needs"),
                ("reserve", "What the service keeps of a disk for itself"),
            )
        }
        self._devices = DeviceGauges(registry)

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answer under the route's pattern, so that ids never become labels."""
        known = self._children.get((method, route, status))
        if known is None:  # to find them takes longer than to count; there are as many as lines of /metrics
            named = method if method in _METHODS else "other"  # a client's own invention must not become a label
            known = self._requests.labels(named, route, str(status)), self._seconds.labels(named, route)
            if named == method:
                self._children[method, route, status] = known
        counter, histogram = known
        counter.inc()
        histogram.observe(seconds)

    def count_history_loss(self) -> None:
        self._history.inc()

    def render(self, counts: GaugeValues) -> bytes:
        """Prometheus's text format."""
        for state, number in counts.jobs.items():
            self._jobs.labels(state).set(number)
        self._waiting.set(counts.waiting)
        self._streams.set(counts.streams)
        self._audit.set(counts.audit_waiting)
        self._pools.show(counts.pools, counts.wanted_nodes)
        for disk in counts.disks:
            self._disks["free"].labels(disk.name).set(disk.free_bytes)
            self._disks["reserve"].labels(disk.name).set(disk.reserve_bytes)
        self._devices.show(counts.readings)
        return generate_latest(self._registry)


class PoolGauges:
    """What there is in each pool, and what waits."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, title: str, *labels: str) -> Gauge:
            return Gauge(f"shardyard_{name}", title, ("pool", *labels), registry=registry)

        self._devices = gauge("devices", "Devices by state", "state")
        self._nodes = gauge("nodes", "Nodes by state", "state")
        self._boxes = gauge("node_boxes", "Live nodes by the box that they put around jobs", "level")
        self._unboxed = gauge("unboxed_nodes", "Live nodes that lack the box which their pool demands")
        self._low_disks = gauge("low_disk_nodes", "Live nodes that take no work because a disk has too little room")
        self._queued = gauge("queued_jobs", "Jobs that wait in a pool")
        self._wanted = gauge("pool_wanted_nodes", "Nodes that work, and further ones that waiting jobs need")
        self._blocks = gauge("pool_blocks", "Blocks requested from an engine", "state")

    def show(self, pools: Sequence[PoolView], wanted: Mapping[str, int]) -> None:
        """A pool that is gone is shown no more."""
        shown = (self._devices, self._nodes, self._boxes, self._unboxed, self._low_disks, self._queued)
        for gauge in (*shown, self._wanted, self._blocks):
            gauge.clear()
        for name, nodes in wanted.items():
            self._wanted.labels(name).set(nodes)
        for pool in pools:
            for state in ("free", "leased", "quarantined"):
                self._devices.labels(pool.name, state).set(getattr(pool, state))
            self._nodes.labels(pool.name, "live").set(pool.live_nodes)
            self._nodes.labels(pool.name, "down").set(pool.nodes - pool.live_nodes)
            self._unboxed.labels(pool.name).set(pool.unboxed)
            self._low_disks.labels(pool.name).set(pool.low_disk)
            for level, number in pool.boxes.items():
                self._boxes.labels(pool.name, level).set(number)
            self._queued.labels(pool.name).set(pool.queued)
            if pool.engine is not None:
                states = [block.state for block in pool.engine.blocks]
                for state in BLOCK_STATES:
                    self._blocks.labels(pool.name, state).set(states.count(state))


#: Of the blocks of an engine.
BLOCK_STATES = ("submitting", "pending", "starting", "running")


class DeviceGauges:
    """The newest readings of devices that work."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._readings = {
            name: Gauge(f"shardyard_device_{name}", f"{title} of a device", _DEVICE, registry=registry)
            for name, title in SERIES_TITLES.items()
        }
        title = "Errors of a device since its attempt began"
        self._errors = Gauge("shardyard_device_errors", title, (*_DEVICE, "error"), registry=registry)

    def show(self, readings: Mapping[str, Sequence[NodeReading]]) -> None:
        for gauge in (*self._readings.values(), self._errors):
            gauge.clear()
        for node, devices in readings.items():
            for reading in devices:
                for name, value in reading.values.items():
                    if name in self._readings:
                        self._readings[name].labels(node, str(reading.device)).set(value)
                for error, count in reading.errors.items():
                    self._errors.labels(node, str(reading.device), error).set(count)
