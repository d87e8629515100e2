"""Collects the profiles of an attempt: asks its ranks for their traces, and stores what they send.

One profile at a time. Every rank is answered for: it sends its trace, or why it has none, or a deadline passes, or it
ends. Then `profile.json` is written beside the traces, and the profile is done.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import time

import structlog

from jobs.files import paths, profiles
from jobs.protocol.profiles import BEGIN_SECONDS, MAX_TRACE_BYTES, RECORD_SECONDS, SEND_SECONDS
from jobs.protocol.records import ProfileBegin, ProfileEnd, ProfilePart
from jobs.store import ProfileRequest
from shardyard.contract.responses import ProfileView, RankProfile, at
from workers.rank.handle import RankHandle
from workers.runtime.launch import AttemptConfig
from workers.supervisor.lease import LeaseHolder

log = structlog.get_logger(__name__)

NO_STEP = f"the rank did not reach the end of a step within {BEGIN_SECONDS:.0f} s"
NOT_SENT = f"the rank has not sent its trace within {RECORD_SECONDS + SEND_SECONDS:.0f} s"
TOO_LARGE = f"the trace is larger than {MAX_TRACE_BYTES:,} bytes; profile fewer steps"
RANK_ENDED = "the rank ended before it had sent its trace"


@dataclass(slots=True)
class _OpenProfile:
    request: ProfileRequest
    directory: Path
    began: float
    waiting: set[int]  # ranks that have not answered yet
    recording: set[int] = field(default_factory=set)
    bytes_by_rank: dict[int, int] = field(default_factory=dict)
    done: dict[int, RankProfile] = field(default_factory=dict)

    def draft(self, rank: int) -> Path:
        """Where the trace of a rank is written while it arrives."""
        return self.directory / f".rank-{rank}.part"


class ProfileCollector:
    """Runs in the supervisor's loop. `lease` says which profile is wanted, and takes what is to be written of it."""

    def __init__(
        self, config: AttemptConfig, ranks: list[RankHandle], lease: LeaseHolder, log_line: Callable[[str], None]
    ) -> None:
        self._directory = paths.dir_of_attempt(config.storage, config.attempt)
        self._attempt = config.attempt.number
        self._ranks = ranks
        self._lease = lease
        self._log_line = log_line
        self._latest = 0
        self._open: _OpenProfile | None = None

    def on_tick(self, now: float) -> None:
        """Begin the profile that is wanted, and end the one whose time is over."""
        request = self._lease.profile_request
        if request is not None and request.number > self._latest and self._open is None:
            self._begin(request, now)
        profile = self._open
        if profile is None or now <= profile.began + BEGIN_SECONDS:
            return
        is_over = now > profile.began + BEGIN_SECONDS + RECORD_SECONDS + SEND_SECONDS
        for rank in sorted(profile.waiting if is_over else profile.waiting - profile.recording):
            error = NOT_SENT if rank in profile.recording else NO_STEP
            self._settle(profile, rank, ProfileEnd(profile.request.number, 0, 0.0, error))

    def on_record(self, rank: int, record: ProfileBegin | ProfilePart | ProfileEnd) -> None:
        """Take what a rank sent. What belongs to no open profile is dropped."""
        profile = self._open
        if profile is None or record.number != profile.request.number or rank not in profile.waiting:
            return
        if isinstance(record, ProfileEnd):
            self._settle(profile, rank, record)
            return
        if isinstance(record, ProfileBegin):
            profile.recording.add(rank)
            return
        size = profile.bytes_by_rank.get(rank, 0) + len(record.data)
        if size > MAX_TRACE_BYTES:
            self._settle(profile, rank, ProfileEnd(record.number, 0, 0.0, TOO_LARGE))
            return
        try:
            with profile.draft(rank).open("ab") as file:
                file.write(record.data)
            profile.bytes_by_rank[rank] = size
        except OSError as error:
            self._settle(profile, rank, ProfileEnd(record.number, 0, 0.0, f"the trace cannot be stored: {error}"))

    def on_rank_end(self, rank: int) -> None:
        """A rank is dead, and all that it sent has been read."""
        if self._open is not None and rank in self._open.waiting:
            self._settle(self._open, rank, ProfileEnd(self._open.request.number, 0, 0.0, RANK_ENDED))

    def close(self) -> None:
        """The attempt is over; nothing is left open."""
        for rank in range(len(self._ranks)):
            self.on_rank_end(rank)

    def _begin(self, request: ProfileRequest, now: float) -> None:
        self._latest = request.number
        directory = paths.profile_dir(self._directory, request.number)
        alive = {rank.number for rank in self._ranks if rank.is_alive}
        profile = self._open = _OpenProfile(request, directory, now, alive)
        self._lease.record_profile(request.number, "recording")
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            for rank in alive:
                end = ProfileEnd(request.number, 0, 0.0, f"the trace cannot be stored: {error}")
                self._settle(profile, rank, end)
            return
        self._show_all(request.number, request.steps)

    def _show_all(self, number: int, steps: int) -> None:
        for rank in self._ranks:
            rank.show_profile(number, steps)

    def _settle(self, profile: _OpenProfile, rank: int, end: ProfileEnd) -> None:
        profile.waiting.discard(rank)
        name, size, draft = f"rank-{rank}.json.gz", profile.bytes_by_rank.get(rank, 0), profile.draft(rank)
        error = end.error
        try:
            if error or not size:
                draft.unlink(missing_ok=True)
                error = error or "the rank sent no trace"
            else:
                os.replace(draft, profile.directory / name)
        except OSError as failed:
            error = f"the trace cannot be stored: {failed}"
        path = None if error else f"profiles/{profile.request.number}/{name}"
        profile.done[rank] = RankProfile(rank, path, 0 if error else size, end.steps, end.seconds, error or None)
        if not profile.waiting:
            self._end(profile)

    def _end(self, profile: _OpenProfile) -> None:
        number = profile.request.number
        self._open = None
        self._show_all(0, 0)
        ranks = [profile.done[rank] for rank in sorted(profile.done)]
        asked, ended = at(profile.request.at), at(int(time() * 1e6))
        view = ProfileView(number, self._attempt, profile.request.steps, "finished", asked, ended, ranks)
        try:
            profiles.write_profile(profile.directory, view)
        except OSError as error:
            log.warning("profile_not_recorded", number=number, error=str(error))
        self._lease.record_profile(number, "done")
        for one in ranks:
            said = one.path or f"no trace: {one.error}"
            self._log_line(f"profile {number}, rank {one.rank}: {said}")
