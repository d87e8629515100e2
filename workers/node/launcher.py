"""Starts supervisors for attempts that wait on this node."""

import threading
from pathlib import Path

import structlog

from jobs import store
from jobs.files import identity
from jobs.model.records import DeviceRecord
from jobs.model.spec import DISTRIBUTED, JobSpec, ScriptProgram
from jobs.model.state import JobState, StateReason
from jobs.scheduling.backoff import backoff_seconds
from jobs.store import AttemptId, JobView
from jobs.store.client import RedisStore
from shardyard.contract.errors import NotFound, SecretKeyUnusable, UnreadableSpec
from workers.carrier.access import access_of
from workers.node import environments, job_secrets
from workers.node.block.allocation import allocation_of, count_cores
from workers.node.config import NodeConfig
from workers.node.forkserver import ForkFailed, ForkServer
from workers.node.held_attempts import HeldAttempts
from workers.node.job_limits import limits_of
from workers.node.job_secrets import SecretsUnusable
from workers.runtime.launch import AttemptConfig

log = structlog.get_logger(__name__)


class _CannotStart(Exception):
    def __init__(self, reason: StateReason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class AttemptLauncher:
    def __init__(self, config: NodeConfig, control: RedisStore, forkserver: ForkServer, held: HeldAttempts) -> None:
        self._config = config
        self._store = control
        self._forkserver = forkserver
        self._held = held
        #: Set when the forkserver has failed: the node takes no work until a new one is up.
        self.forkserver_failed = threading.Event()

    def start_attempt(self, attempt: AttemptId) -> None:
        """Start a supervisor for an attempt that waits for one here. Harmless when repeated, late or wrong."""
        try:
            config = self._read_waiting(attempt)
            if config is None:
                return
            pid = self._fork_supervisor(config, self._read_secrets(attempt.tenant, config.spec))
        except _CannotStart as error:
            log.error("attempt_not_started", attempt=str(attempt), why=str(error))
            refuse = store.refuse(
                attempt, self._config.node_id, error.reason, str(error), backoff_seconds=backoff_seconds()
            )
            self._store.run(refuse)
            return
        self._held.add_started(attempt)
        log.info("supervisor_started", attempt=str(attempt), pid=pid)

    def _read_waiting(self, attempt: AttemptId) -> AttemptConfig | None:
        """How to run this node's part of an attempt; None where it does not wait for its start here."""
        try:
            job = self._store.run(store.read_job(attempt.tenant, attempt.job))
        except NotFound:
            return None
        except UnreadableSpec as error:
            raise _CannotStart(StateReason.REJECTED_BY_WORKER, error.message) from error
        record = job.record
        if (record.attempt, record.state) != (attempt.number, JobState.STARTING):
            return None
        nodes = [place.node for place in record.placement]
        if self._config.node_id not in nodes:
            return None
        self._check_storage()
        part = nodes.index(self._config.node_id)
        lease = self._leased_devices(record.placement[part].devices)
        return self._attempt_config(attempt, job, part, lease, self._choose_python(job.spec))

    def _check_storage(self) -> None:
        """Without its storage an attempt would find no checkpoint, and leave its files where they are never looked
        for. The agent's next heartbeat ends the worker for the same reason."""
        try:
            identity.check_storage(self._config.storage)
        except (identity.StorageMismatch, OSError) as error:
            self._store.run(store.take_down_node(self._config.node_id, None))
            raise _CannotStart(StateReason.START_FAILED, str(error)) from error

    def _leased_devices(self, indexes: tuple[int, ...]) -> tuple[DeviceRecord, ...]:
        devices = self._config.devices
        if max(indexes) >= len(devices):
            message = f"node {self._config.node_id} no longer has device {max(indexes)}"
            raise _CannotStart(StateReason.START_FAILED, message)
        return tuple(devices[index] for index in indexes)

    def _choose_python(self, spec: JobSpec) -> Path | None:
        """The Python in which ranks start cold; None: they are forked warm."""
        if spec.start == "warm":
            return None
        name = spec.program.python if isinstance(spec.program, ScriptProgram) else None
        try:
            return environments.choose_python(self._config.environments, name)
        except LookupError as error:
            raise _CannotStart(StateReason.REJECTED_BY_WORKER, str(error)) from error

    def _read_secrets(self, tenant: str, spec: JobSpec) -> dict[str, str]:
        """The values of the job's secrets by their variables, as they are now. The key goes no further than this
        process."""
        try:
            return job_secrets.read_values(self._store, self._config.settings.secret_keys(), tenant, spec.secrets)
        except SecretsUnusable as error:
            raise _CannotStart(StateReason.REJECTED_BY_WORKER, str(error)) from error
        except SecretKeyUnusable as error:
            raise _CannotStart(StateReason.START_FAILED, f"program.secrets: {error.message}") from error

    def _fork_supervisor(self, config: AttemptConfig, secrets: dict[str, str]) -> int:
        settings = self._config.settings
        try:
            access = access_of(settings) if config.target is not None else None
            return self._forkserver.start_supervisor(config, *settings.supervisor_urls(), secrets, access)
        except OSError as error:
            raise _CannotStart(StateReason.START_FAILED, f"SHARDYARD_NODE_TOKEN_FILE: {error}") from error
        except ForkFailed as error:
            self.forkserver_failed.set()
            self._store.run(store.take_down_node(self._config.node_id, None))
            raise _CannotStart(StateReason.START_FAILED, str(error)) from error

    def _attempt_config(
        self, attempt: AttemptId, job: JobView, part: int, lease: tuple[DeviceRecord, ...], python: Path | None
    ) -> AttemptConfig:
        placement = job.record.placement
        settings, accounts, spec = self._config.settings, self._config.accounts, job.spec
        distributed = spec.parallelism.strategy in DISTRIBUTED
        cores, indexes = count_cores(allocation_of(settings)), [device.index for device in lease]
        return AttemptConfig(
            attempt=attempt,
            spec=spec,
            node=self._config.node_id,
            address=settings.node_address,
            devices=lease,
            threads=1 if distributed else max(1, cores * len(lease) // self._config.devices_here),
            state_dir=self._config.state_dir,
            storage=self._config.storage,
            lease_seconds=settings.lease_seconds,
            beat_seconds=settings.beat_seconds,
            grace_seconds=min(settings.grace_seconds, settings.lease_seconds / 12),
            checkpoint_seconds=settings.checkpoint_seconds,
            data_root=settings.data_root.expanduser() if settings.data_root is not None else None,
            python=python,
            account=None if accounts is None else accounts.for_devices(indexes, settings.rank_processes),
            max_artifact_bytes=settings.max_artifact_bytes,
            limits=limits_of(settings, len(lease), self._config.devices_here),
            network=job.record.network or "none",  # an earlier version, which knows no policies, may have dispatched it
            reserve_bytes=settings.reserve_bytes,
            part=part,
            parts=tuple(place.node for place in placement) if len(placement) > 1 else (),
            join_seconds=settings.join_seconds,
            traceparent=job.record.trace.traceparent,
            target=self._config.target if self._config.target.is_carried else None,
            carry_bytes=settings.carry_bytes,
            temporary=bool(settings.block),
        )
