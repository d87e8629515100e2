"""Readiness and gauges of the service itself."""

from collections.abc import Callable

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
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import Unavailable
from shardyard.contract.responses import Readiness

#: `/readyz` needs no token, so it does not ask Redis each time it is asked itself.
READY_SECONDS = 0.5


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
        return GaugeValues(
            states, views.pool_views(fleet), waiting, streams, readings, self._disks.spaces, self._audit.waiting
        )
