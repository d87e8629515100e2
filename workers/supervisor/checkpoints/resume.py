"""Chooses the checkpoint that a new attempt resumes from: the newest one whose every byte is what was saved.

A thread reads the files, so that the supervisor can write lines to the log, see a cancel, and give up on a disk that
does not answer. The ranks wait meanwhile.
"""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Generic, TypeVar, cast

import structlog

from jobs import store
from jobs.files import checkpoints
from jobs.files.checkpoints import CheckpointPointer, DamagedCheckpoint, Progress, StoredCheckpoint, VerifiedCheckpoint
from jobs.model.spec import JobSpec, ScriptProgram
from jobs.model.state import SupervisorCommand
from jobs.protocol.records import Note
from workers.runtime.launch import AttemptConfig, AttemptDirectory
from workers.supervisor.carriage import AttemptCarriage
from workers.supervisor.checkpoints import script_resume
from workers.supervisor.checkpoints.directories import CheckpointDirectories
from workers.supervisor.checkpoints.script_resume import CopiedCheckpoint, SearchResult
from workers.supervisor.lease import CLAIM_SECONDS, LeaseHolder
from workers.supervisor.telemetry.publisher import TelemetryPublisher

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: A storage from which no byte was read for this long does not answer.
STORAGE_TIMEOUT_SECONDS = 120.0
#: How often the log says how much has been read.
PROGRESS_LINE_SECONDS = 2.0
TICK_SECONDS = 0.05


class StartInterrupted(Exception):
    """The attempt is to end before its ranks have started; `command` says why."""

    def __init__(self, command: SupervisorCommand) -> None:
        super().__init__(command)
        self.command = command


class StorageTimeout(Exception):
    """The storage does not answer."""


def choose_checkpoint(
    directories: CheckpointDirectories,
    lease: LeaseHolder,
    publisher: TelemetryPublisher,
    carriage: AttemptCarriage | None = None,
) -> VerifiedCheckpoint | None:
    """Verify checkpoints, newest first, until one is whole; record it in the control Redis and in the log. None: the
    job begins at its first step. `carriage`: where the storage is not mounted, and has more of them.

    Raises:
        StartInterrupted: an order came meanwhile.
        StorageTimeout, OSError: the storage does not answer, or cannot read the only checkpoints that could be used.
            Later, or on another node, it may; to begin at the first step would lose everything.
        Unavailable: Redis does not answer.
    """
    pointer = _read_pointer(lease)
    if pointer is None:
        return None  # nothing was ever committed, or an earlier attempt could use nothing
    found, refused = None, None
    there = checkpoints.list_checkpoints(directories.kept)
    if carriage is not None:
        there = _merge_checkpoints(there, carriage.list_checkpoints())
    if not any((one.step, one.attempt) == (pointer.step, pointer.attempt) for one in there):
        publisher.log_line(
            f"the checkpoint of step {pointer.step} of attempt {pointer.attempt} does not exist any more"
        )
    for one in checkpoints.order_candidates(there, pointer):
        try:
            found = _verify_checkpoint(one, pointer, lease, publisher, carriage)
        except OSError as error:
            log.exception("checkpoint_not_read", step=one.step, attempt=one.attempt)
            publisher.log_line(f"the checkpoint of step {one.step} of attempt {one.attempt} cannot be read: {error}")
            refused = error
        if found is not None:
            break
    if found is None and refused is not None:
        raise refused
    _record_choice(lease, found)
    if found is None:
        publisher.log_line("no checkpoint could be used; the run begins at its first step")
    else:
        publisher.log_line(f"resumed at step {found.manifest.step} of attempt {found.manifest.attempt}")
    return found


def resume_script(
    config: AttemptConfig,
    spec: JobSpec,
    lease: LeaseHolder,
    publisher: TelemetryPublisher,
    carriage: AttemptCarriage | None = None,
) -> CopiedCheckpoint | None:
    """Copy the newest whole checkpoint that a script has saved in its earlier attempts, and record it in the log and in
    the report. None: there is no checkpoint.

    Raises:
        StartInterrupted: an order came meanwhile.
        StorageTimeout, OSError: the storage does not answer, or there is no room for a copy.
        Unavailable: Redis does not answer.
    """
    if not isinstance(spec.program, ScriptProgram) or config.attempt.number == 1:
        return None
    into = AttemptDirectory.of(config.state_dir, config.attempt).resume
    storage = config.storage
    try:
        if carriage is not None:
            fetch = partial(carriage.fetch_script_checkpoints, config.attempt)
            storage = _read_with_progress(fetch, "fetching the checkpoint of an earlier attempt", lease, publisher)
        take_over = partial(script_resume.copy_newest_checkpoint, storage, config.attempt, into)
        search = _read_with_progress(take_over, "reading the checkpoint of an earlier attempt", lease, publisher)
        if carriage is not None:
            carriage.discard_fetched()
    except DamagedCheckpoint as error:  # a fault of the service, which is logged: the job starts all the same
        search = SearchResult(damaged=[str(error)])
    for why in search.damaged:
        log.warning("checkpoint_damaged", why=why)
        publisher.log_line(why)
    if search.found is None:
        if search.damaged:
            publisher.log_line("no checkpoint could be used; the script begins without one")
        return None
    name, attempt = search.found.name, search.found.attempt
    if not lease.run_as_claimant(partial(store.record_script_resume, saved_by=attempt), CLAIM_SECONDS):
        raise StartInterrupted(SupervisorCommand.LOST)
    publisher.log_line(f"resumed from the checkpoint {name!r} of attempt {attempt}")
    begins = f"this attempt resumed from the checkpoint {name!r} of attempt {attempt}, and its report begins there"
    publisher.add_record(0, Note("resumed", begins))
    return replace(search.found, directory=Path(os.path.realpath(search.found.directory)))


def _merge_checkpoints(here: list[StoredCheckpoint], carried: list[StoredCheckpoint]) -> list[StoredCheckpoint]:
    """The checkpoints that are here, or at the storage, newest first."""
    every = {(one.step, one.attempt): one for one in (*carried, *here)}
    return [every[key] for key in sorted(every, reverse=True)]


def _read_pointer(lease: LeaseHolder) -> CheckpointPointer | None:
    found = lease.read_job().record.checkpoint
    return None if found is None else CheckpointPointer(found["step"], found["attempt"], found["sha256"])


def _record_choice(lease: LeaseHolder, found: VerifiedCheckpoint | None) -> None:
    """Raises Unavailable; and StartInterrupted, where another attempt has this one's place."""
    call = partial(store.record_resume, step=None)
    if found is not None:
        made = found.manifest
        call = partial(
            store.record_resume, step=made.step, epoch=made.epoch, saved_by=made.attempt, sha256=found.sha256
        )
    if not lease.run_as_claimant(call, CLAIM_SECONDS):
        raise StartInterrupted(SupervisorCommand.LOST)


def _verify_checkpoint(
    one: StoredCheckpoint,
    pointer: CheckpointPointer,
    lease: LeaseHolder,
    publisher: TelemetryPublisher,
    carriage: AttemptCarriage | None,
) -> VerifiedCheckpoint | None:
    """A checkpoint if it is whole, else None, and a line in the log says why. Raises as `_read_with_progress` does."""
    pointed = (one.step, one.attempt) == (pointer.step, pointer.attempt)
    verify = partial(checkpoints.verify_checkpoint, one.directory, pointer.sha256 if pointed else None)
    try:
        if carriage is not None:
            fetch = partial(carriage.fetch_checkpoint, one.directory)
            _read_with_progress(fetch, f"fetching the checkpoint of step {one.step}", lease, publisher)
        return _read_with_progress(verify, f"verifying the checkpoint of step {one.step}", lease, publisher)
    except DamagedCheckpoint as error:
        log.warning("checkpoint_damaged", step=one.step, attempt=one.attempt, why=str(error))
        publisher.log_line(f"the checkpoint of step {one.step} of attempt {one.attempt} is damaged: {error}")
        return None


def _read_with_progress(
    work: Callable[[Progress], T], what: str, lease: LeaseHolder, publisher: TelemetryPublisher
) -> T:
    """Have a thread read files for as long as it makes progress, and report that in the log.

    Raises:
        StartInterrupted: an order came meanwhile.
        StorageTimeout: the storage does not answer.
        DamagedCheckpoint, OSError: as `work` does.
    """
    reading = _ReadingThread(work)
    logged_at = monotonic()
    while not reading.done.wait(TICK_SECONDS):
        if lease.command is not SupervisorCommand.GO:
            raise StartInterrupted(lease.command)
        now = monotonic()
        if now - reading.last_read_at > STORAGE_TIMEOUT_SECONDS:
            raise StorageTimeout(
                f"the storage did not answer for {STORAGE_TIMEOUT_SECONDS:g} s while a checkpoint was read"
            )
        if now - logged_at > PROGRESS_LINE_SECONDS:
            logged_at = now
            publisher.log_line(f"{what}: {reading.bytes_read / 1e9:.1f} GB so far")
        publisher.flush_due(time.time())
    return reading.get_result()


class _ReadingThread(Generic[T]):
    """Reads files in a thread of its own."""

    def __init__(self, work: Callable[[Progress], T]) -> None:
        self.bytes_read = 0
        self.last_read_at = monotonic()  # when the last bytes came
        self.done = threading.Event()
        self._work = work
        self._result: T | None = None
        self._error: Exception | None = None
        threading.Thread(target=self._run_work, name="reading", daemon=True).start()

    def get_result(self) -> T:
        if self._error is not None:
            raise self._error
        return cast(T, self._result)

    def _run_work(self) -> None:
        try:
            self._result = self._work(self._add_bytes)
        except (DamagedCheckpoint, OSError) as error:
            self._error = error
        except Exception as error:  # whatever the files contain: this checkpoint cannot be used
            log.exception("checkpoint_not_verified")
            self._error = DamagedCheckpoint(f"{type(error).__name__}: {error}")
        finally:
            self.done.set()

    def _add_bytes(self, count: int) -> None:
        self.bytes_read += count
        self.last_read_at = monotonic()
