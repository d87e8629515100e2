"""Finds attempts whose supervisor is dead, kills what is left of them, and frees their devices."""

from pathlib import Path

import structlog

from jobs import store
from jobs.model.state import AttemptState, StateReason
from jobs.scheduling.backoff import backoff_seconds
from jobs.store import AttemptId
from jobs.store.client import RedisStore
from workers.carrier.journal import carried_attempts, is_carried, is_held
from workers.node.config import NodeConfig
from workers.node.held_attempts import HeldAttempts
from workers.node.janitor import clear_orphan, orphaned_attempts
from workers.runtime.launch import AttemptDirectory
from workers.supervisor import working_dir
from workers.supervisor.ending import pending_end
from workers.supervisor.process_sweep import describe_survivors, is_supervisor_dead, sweep_attempt
from workers.supervisor.user_files.collection import keep_files_of_dead_supervisor

log = structlog.get_logger(__name__)

#: A supervisor that still holds devices this many leases after its attempt has ended is stuck, and is killed.
STUCK_LEASES = 2
LOG_TAIL_BYTES = 4096


class AttemptReaper:
    def __init__(self, config: NodeConfig, control: RedisStore, held: HeldAttempts) -> None:
        self._config = config
        self._store = control
        self._held = held

    def clear_orphans(self) -> None:
        """Sweep what dead supervisors have left. This includes attempts that hold no device any more, which no
        heartbeat names."""
        for attempt in orphaned_attempts(self._config.state_dir):
            directory = AttemptDirectory.of(self._config.state_dir, attempt)
            log.warning("supervisor_found_dead", attempt=str(attempt), last_words=_read_log_tail(directory.log))
            clear_orphan(self._config.state_dir, self._config.storage, attempt)

    def reap_lost_attempts(self) -> None:
        for attempt, state in self._held.with_states():
            directory = AttemptDirectory.of(self._config.state_dir, attempt)
            is_claimed = state is not AttemptState.LEASED
            if is_claimed and (is_supervisor_dead(directory) or self._is_stuck(attempt)):
                self._reap(attempt, directory)

    def reap_silent_attempts(self) -> None:
        """End attempts that have handed their devices back to carry files, so that no heartbeat names them, and whose
        supervisor died before it could say how they ended."""
        state_dir, held = self._config.state_dir, set(self._held.attempt_ids())
        for attempt in carried_attempts(state_dir) if self._config.target.is_carried else ():
            directory = AttemptDirectory.of(state_dir, attempt)
            is_left = not is_held(state_dir, attempt) and directory.directory.exists()
            if is_left and attempt not in held and not directory.pending_end.exists():
                self._reap(attempt, directory)
                if not sweep_attempt(directory, attempt):
                    directory.remove()

    def _reap(self, attempt: AttemptId, directory: AttemptDirectory) -> None:
        survivors = sweep_attempt(directory, attempt)
        working_dir.reclaim_storage(self._config.storage, attempt)
        keep_files_of_dead_supervisor(directory, self._config.storage, attempt)
        if self._leave_to_carrier(attempt, directory, survivors):
            return
        pending_end.report_pending_end(self._store, attempt, directory.pending_end)
        lost = store.reap(
            attempt,
            StateReason.SUPERVISOR_LOST,
            "its supervisor died",
            heartbeat=None,
            backoff_seconds=backoff_seconds(),
            node=self._config.node_id,
        )
        if self._store.run(lost):
            log.warning("supervisor_lost", attempt=str(attempt), last_words=_read_log_tail(directory.log))
        quarantine = self._quarantine_reasons(survivors)
        if self._store.run(store.release(self._config.node_id, attempt, quarantine)) > 0 and not survivors:
            directory.remove()
        self._held.remove(attempt)

    def _leave_to_carrier(self, attempt: AttemptId, directory: AttemptDirectory, survivors: dict[int, str]) -> bool:
        """Give back the devices of an attempt whose end waits for its files, which are carried by `leftovers`."""
        end = pending_end.read_pending_end(directory.pending_end)
        if end is None or not is_carried(self._config.state_dir, attempt):
            return False
        node, quarantine = self._config.node_id, self._quarantine_reasons(survivors)
        if not self._store.run(store.hand_back(attempt, end.claimant, node, quarantine)):
            return False
        self._held.remove(attempt)
        return True

    def _is_stuck(self, attempt: AttemptId) -> bool:
        """Whether an attempt ended long ago (its lease expired) and its supervisor, frozen perhaps, has not noticed."""
        return self._held.seconds_since_end(attempt) > STUCK_LEASES * self._config.settings.lease_seconds

    def _quarantine_reasons(self, survivors: dict[int, str]) -> dict[int, str]:
        if not survivors:
            return {}
        reason = f"would not die: {describe_survivors(survivors)}"
        return {device.index: reason for device in self._config.devices}


def _read_log_tail(path: Path) -> str:
    """The end of a dead supervisor's log, which goes with its directory; "" when there is none."""
    try:
        return path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
    except OSError:
        return ""
