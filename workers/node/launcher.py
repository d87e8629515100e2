"""Starts supervisors for attempts that wait on this node."""

import os
import threading
from pathlib import Path

import structlog

from jobs import store
from jobs.files import identity
from jobs.model.records import DeviceRecord
from jobs.model.spec import DISTRIBUTED, JobSpec, ScriptProgram
from jobs.model.state import JobState, StateReason
from jobs.scheduling.scheduler import backoff_seconds
from jobs.store import AttemptId
from jobs.store.client import RedisStore
from shardyard.contract.errors import NotFound, UnreadableSpec
from workers.node import environments
from workers.node.config import NodeConfig
from workers.node.forkserver import ForkFailed, ForkServer
from workers.node.held_attempts import HeldAttempts
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
            pid = self._fork_supervisor(config)
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
        """How to run an attempt; None where it does not wait for its start on this node."""
        try:
            job = self._store.run(store.read_job(attempt.tenant, attempt.job))
        except NotFound:
            return None
        except UnreadableSpec as error:
            raise _CannotStart(StateReason.REJECTED_BY_WORKER, error.message) from error
        record = job.record
        if (record.attempt, record.state, record.node) != (attempt.number, JobState.STARTING, self._config.node_id):
            return None
        self._check_storage()
        lease = self._leased_devices(record.leased)
        return self._attempt_config(attempt, job.spec, lease, self._choose_python(job.spec))

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

    def _fork_supervisor(self, config: AttemptConfig) -> int:
        settings = self._config.settings
        try:
            return self._forkserver.start_supervisor(config, settings.control_url(), settings.telemetry())
        except ForkFailed as error:
            self.forkserver_failed.set()
            self._store.run(store.take_down_node(self._config.node_id, None))
            raise _CannotStart(StateReason.START_FAILED, str(error)) from error

    def _attempt_config(
        self, attempt: AttemptId, spec: JobSpec, lease: tuple[DeviceRecord, ...], python: Path | None
    ) -> AttemptConfig:
        settings, accounts = self._config.settings, self._config.accounts
        distributed = spec.parallelism.strategy in DISTRIBUTED
        cores, indexes = len(os.sched_getaffinity(0)), [device.index for device in lease]
        return AttemptConfig(
            attempt=attempt,
            spec=spec,
            node=self._config.node_id,
            address=settings.node_address,
            devices=lease,
            threads=1 if distributed else max(1, cores * len(lease) // len(self._config.devices)),
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
        )
