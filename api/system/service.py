"""Readiness and gauges of the service itself."""

from collections.abc import Callable, Sequence

from api.data.change_notifier import ChangeNotifier
from api.data.disk_guard import DiskGuard
from api.data.fleet_cache import FleetCache
from api.data.telemetry_reader import TelemetryReader
from api.events.service import StreamSlots
from api.http.audit_log import AuditLog
from api.http.auth import Principal
from api.http.prometheus import GaugeValues
from api.schemas import views
from jobs import store
from jobs.scheduling.node_demand import NodeLimits, plan_nodes
from jobs.store.client import AsyncRedisStore
from jobs.store.pools import read_demand
from shardyard.contract.errors import Unavailable
from shardyard.contract.fleet import PoolView
from shardyard.contract.responses import Readiness

#: `/readyz` needs no token, so it does not ask Redis each time it is asked itself.
READY_SECONDS = 0.5
#: Of a pool whose nodes nobody limits.
MAX_WANTED_NODES = 1024


class SystemService:
    def __init__(
        self,
        control: AsyncRedisStore,
        telemetry: TelemetryReader,
        fleet: FleetCache,
        changes: ChangeNotifier,
        streams: StreamSlots,
        disks: DiskGuard,
        scheduler_alive: Callable[[], bool],
        audit: AuditLog,
    ) -> None:
        self._store = control
        self._telemetry = telemetry
        self._fleet = fleet
        self._changes = changes
        self._streams = streams
        self._disks = disks
        self._scheduler_alive = scheduler_alive
        self._audit = audit

    async def check_readiness(self) -> Readiness:
        """Whether a job that is submitted now would be stored and could start."""
        checks = {"scheduler": "ok" if self._scheduler_alive() else "not running"}
        low = self._disks.low
        checks["audit"] = f"cannot be written: {self._audit.failure}" if self._audit.is_full else "ok"
        checks["disks"] = f"{low[0].name}: {low[0].shortage}" if low else "ok"
        try:
            fleet = await self._fleet.read_fleet(max_age=READY_SECONDS)
            checks["control_redis"] = "ok"
            checks["nodes"] = "ok" if any(node.takes_work for node in fleet.nodes) else "none takes work"
        except Unavailable:
            checks["control_redis"] = "does not answer"
            checks["nodes"] = "not known"
        try:
            await self._telemetry.ping()
            checks["telemetry_redis"] = "ok"
        except Unavailable:
            checks["telemetry_redis"] = "does not answer"
        return Readiness(all(state == "ok" for state in checks.values()), checks)

    async def read_gauges(self, who: Principal) -> GaugeValues:
        """What Prometheus's gauges show: jobs of the caller's tenant, and every pool."""
        jobs = await self._store.run(store.count_jobs(who.tenant))
        fleet = await self._fleet.read_fleet(max_age=0)
        readings = await self._telemetry.read_readings([node.id for node in fleet.nodes])
        states = {str(state): number for state, number in jobs.items()}
        waiting, streams = self._changes.waiting_count, self._streams.open_count
        pools = views.pool_views(fleet)
        wanted = await self._count_wanted_nodes(pools)
        return GaugeValues(states, pools, waiting, streams, readings, self._disks.spaces, self._audit.waiting, wanted)

    async def _count_wanted_nodes(self, pools: Sequence[PoolView]) -> dict[str, int]:
        """How many nodes each pool should have, for whoever starts and ends them. Where no provider says what a new
        node has, it is taken to be like the largest there is."""
        wanted = {}
        for pool in pools:
            engine = pool.engine
            limits = (
                NodeLimits(pool.largest_node, MAX_WANTED_NODES)
                if engine is None
                else NodeLimits(engine.node_devices, engine.max_nodes, engine.min_nodes)
            )
            wanted[pool.name] = plan_nodes(await self._store.run(read_demand(pool.name)), limits).wanted
        return wanted
