"""Renews the attempt's lease and delivers stop and cancel commands: the supervisor's connection to the control Redis.

One thread renews the lease and polls for commands, so that a slow or absent Redis never holds up the loop that reads
the ranks. A Redis that is away raises nothing here: the thread tries again, and `seconds_since_renewal` says how old
the last renewal is.

It polls every `POLL_SECONDS`. When the attempt is older than `SUBSCRIBE_AFTER_SECONDS`, a second thread subscribes to
the channel on which new commands are announced. While it is subscribed, each renewal brings the commands along, and no
other poll is sent: polls for thousands of idle attempts would take a core of Redis otherwise.

A main thread that stands still gives the lease up: it is not renewed any more, so that the attempt ends.
"""

import queue
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, Literal, TypeVar

import structlog

from jobs import store
from jobs.model.device_history import AttemptMarks
from jobs.model.state import StateReason, SupervisorCommand
from jobs.protocol.names import commands_channel
from jobs.store.accounts import webhooks
from jobs.store.accounts.webhooks import PostedFinding
from jobs.store.client import RedisStore
from shardyard.contract.errors import Unavailable
from workers.supervisor.ending import pending_end
from workers.supervisor.ending.outcome import AttemptOutcome
from workers.supervisor.ending.pending_end import PendingCheckpoint, PendingEnd, divide_marks
from workers.supervisor.main_thread_watch import END_SECONDS, LOST_SECONDS, MainThreadWatch
from workers.supervisor.stop_signal import is_stop_signalled

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ProfileState:
    """What to write of a profile."""

    number: int
    state: Literal["recording", "done"]


Milestone = Literal["running", "first_step"]
_Request = Milestone | Literal["poll"] | ProfileState | tuple[PostedFinding, ...] | None  # None ends the thread

#: A request: there may be new commands.
_POLL: Literal["poll"] = "poll"

POLL_SECONDS = 0.3
#: Most attempts of seconds have ended by then, and need no second connection.
SUBSCRIBE_AFTER_SECONDS = 2.0
#: How long the second thread waits for a message at a time.
PUBSUB_WAIT_SECONDS = 60.0
CLAIM_SECONDS = 30.0
#: How often it is looked whether another node has sent a heartbeat.
HEARTBEAT_POLL_SECONDS = 0.2
#: An end that Redis has not taken after the first is saved, for others to report; it is tried for the second then.
SAVE_END_AFTER_SECONDS = 5.0
FINISH_SECONDS = 300.0
#: Delays between tries while Redis is away grow from the first to the second, or to the time between two renewals.
RETRY_SECONDS = (0.5, 4.0)
#: Delays between questions for the leader's link grow from the first to the second, by this factor.
LINK_POLL_SECONDS = (0.05, 0.25)
LINK_POLL_GROWTH = 1.5


class LeaseHolder:
    """Holds the lease of one attempt from `claim` to `finish`. `heartbeat_seconds` is the time between two renewals."""

    def __init__(self, control: RedisStore, attempt: store.AttemptId, node: str, heartbeat_seconds: float) -> None:
        self._store = control
        self.main_thread = MainThreadWatch()
        self._attempt = attempt
        self._node = node
        self._heartbeat_seconds = heartbeat_seconds
        self._claimant = uuid.uuid4().hex
        self._part = 0
        self._command = SupervisorCommand.GO
        self._profile_request: store.ProfileRequest | None = None
        self._renewed_at = monotonic()
        self._requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
        self._renewal_thread = threading.Thread(target=self._run_renewals, name="lease", daemon=True)
        self._pubsub_thread = threading.Thread(target=self._listen_for_commands, name="commands", daemon=True)
        self._is_subscribed = False
        self._closed = threading.Event()

    def claim(self, link: str = "") -> store.ClaimReply:
        """Claim the node's part of the attempt, and start to renew its lease if that succeeds. `link` is where this
        supervisor hears the others if it leads them, with a secret.

        Raises:
            Unavailable: Redis did not answer for `CLAIM_SECONDS`.
        """
        claim = self._retry_until(store.claim(self._attempt, self._claimant, self._node, link), CLAIM_SECONDS)
        if claim.granted:
            self._part = claim.part
            self._renewed_at = monotonic()
            self._renewal_thread.start()
        return claim

    def await_link(self, deadline: float, is_interrupted: Callable[[], bool]) -> str:
        """Where the leader is reached, with the secret that it wants to be shown; "" where it has not claimed its part
        by `deadline`, which is a time of the monotonic clock, or the wait was interrupted, or the attempt has ended."""
        ask = store.claim(self._attempt, self._claimant, self._node)
        delay, longest = LINK_POLL_SECONDS
        while not is_interrupted():
            with suppress(Unavailable):
                claim = self._store.run(ask)
                if claim.link or not claim.granted:
                    return claim.link
            seconds_left = deadline - monotonic()
            if seconds_left <= 0:
                break
            threading.Event().wait(min(delay, seconds_left))
            delay = min(LINK_POLL_GROWTH * delay, longest)
        return ""

    @property
    def command(self) -> SupervisorCommand:
        """The newest command. `LOST` is final: another attempt may be running by now. A signal of the engine that ends
        this node comes sooner than the command that says the same."""
        if self._command is SupervisorCommand.GO and is_stop_signalled():
            return SupervisorCommand.STOP
        return self._command

    @property
    def profile_request(self) -> store.ProfileRequest | None:
        """The newest profile that a user has asked for."""
        return self._profile_request

    def record_profile(self, number: int, state: Literal["recording", "done"]) -> None:
        """Have the thread write how far a profile is, in the order of the calls."""
        self._requests.put(ProfileState(number, state))

    def post_findings(self, findings: Sequence[PostedFinding]) -> None:
        """Have the thread post findings to the tenant's webhooks, in one exchange."""
        self._requests.put(tuple(findings))

    @property
    def seconds_since_renewal(self) -> float:
        """Seconds since the lease was last renewed."""
        return monotonic() - self._renewed_at

    def record_milestone(self, milestone: Milestone) -> None:
        """Have the thread write a milestone at once, in the order of the calls."""
        self._requests.put(milestone)

    def run_as_claimant(self, make_call: Callable[[store.AttemptId, str], store.Call[T]], seconds: float = 0.0) -> T:
        """Run a call that only the claimant of this attempt may make; it is retried for `seconds` while Redis is away.

        Raises:
            Unavailable: it still is.
        """
        return self._retry_until(make_call(self._attempt, self._claimant), seconds)

    def finish(
        self,
        reason: StateReason,
        message: str,
        error: dict[str, Any] | None,
        result: dict[str, Any] | None,
        backoff: float,
        quarantine: dict[int, str] | None = None,
        measured: AttemptMarks | None = None,
        *,
        pending_file: Path,
    ) -> bool:
        """Write the end of the attempt, after all milestones, and give the devices back as `release_devices` does. The
        lease is renewed until then. False: it was lost before, and nothing is written.

        Raises:
            Unavailable: Redis did not answer for `FINISH_SECONDS`. The end is saved in `pending_file`, for
            `workers.supervisor.ending.pending_end:report_pending_end`.
        """
        end = store.finish(
            self._attempt,
            self._claimant,
            reason,
            message,
            error=error,
            result=result,
            backoff_seconds=backoff,
            node=self._node,
            quarantine=quarantine,
            measured=measured,
        )
        self.main_thread.expect_within(END_SECONDS)
        self._requests.put(None)
        try:
            return self._send_after_requests(end, SAVE_END_AFTER_SECONDS)
        except Unavailable:
            own, others = divide_marks(measured or {})
            pending = PendingEnd(self._claimant, reason, message, error, result, backoff, own, others)
            self._save_pending_end(pending_file, pending)
        written = self._send_after_requests(end, FINISH_SECONDS)
        pending_file.unlink(missing_ok=True)
        return written

    def leave_end(
        self,
        outcome: AttemptOutcome,
        backoff: float,
        measured: AttemptMarks | None,
        checkpoint: PendingCheckpoint | None,
        pending_file: Path,
    ) -> None:
        """Leave the end of the attempt to the node's agent, which reports it when the files are where they belong, and
        renews the lease until then.

        Raises:
            OSError: the disk does not take it.
        """
        own, others = divide_marks(measured or {})
        end = outcome.reason, outcome.message, outcome.error, outcome.result
        pending_end.save_pending_end(pending_file, PendingEnd(self._claimant, *end, backoff, own, others, checkpoint))

    def hand_back_devices(self, quarantine: dict[int, str]) -> None:
        """Give the devices of this node back before the end is written, for an attempt whose files are carried: every
        process of it is proven dead here, but for those of `quarantine`. Where Redis is away they are with the end."""
        try:
            call = partial(store.hand_back, node=self._node, quarantine=quarantine)
            self.run_as_claimant(call, SAVE_END_AFTER_SECONDS)
        except Unavailable as error:
            log.warning("devices_not_handed_back", error=str(error))

    def abandon(self, node: str, message: str, backoff: float, quarantine: dict[int, str] | None = None) -> bool:
        """As the leader, give the attempt up because the part on `node` has not joined, and give the devices back as
        `release_devices` does. False: the lease was lost before, and nothing is written.

        Raises:
            Unavailable: Redis did not answer for `FINISH_SECONDS`.
        """
        end = store.abandon(self._attempt, self._claimant, node, message, backoff_seconds=backoff)
        self._requests.put(None)
        written = self._send_after_requests(end, FINISH_SECONDS)
        self.release_devices(quarantine or {})
        return written

    def _send_after_requests(self, end: store.Call[bool], seconds: float) -> bool:
        deadline = monotonic() + seconds
        self._renewal_thread.join(seconds)
        if self._renewal_thread.is_alive():
            raise Unavailable("the control Redis has not taken the milestones that come before the end")
        return self._retry_until(end, deadline - monotonic())

    def _save_pending_end(self, path: Path, end: PendingEnd) -> None:
        try:
            pending_end.save_pending_end(path, end)
            log.warning("end_not_told", kept=str(path), reason=end.reason)
        except OSError as error:
            log.error("end_neither_told_nor_kept", reason=end.reason, error=str(error))

    def release_devices(self, quarantine: dict[int, str]) -> bool:
        """Give the devices back: every process of the attempt is proven dead here, but for those of `quarantine`.
        False: the attempt has not ended yet, and nothing was given back."""
        return self._retry_until(store.release(self._node, self._attempt, quarantine), FINISH_SECONDS) >= 0

    def hears_node(self, node: str, seconds: float) -> bool:
        """Whether the control Redis gets a heartbeat of a node within so many seconds.

        Raises:
            Unavailable: Redis did not answer.
        """
        first = self._retry_until(store.read_heartbeats(), seconds).nodes.get(node)
        deadline = monotonic() + seconds
        while first is not None and monotonic() < deadline:
            threading.Event().wait(HEARTBEAT_POLL_SECONDS)
            if self._retry_until(store.read_heartbeats(), seconds).nodes.get(node) not in (None, first):
                return True
        return False

    def find_bundle_nonce(self, bundle: str) -> str:
        """The nonce in the name of a bundle's file; "" where that is not known, or Redis does not answer."""
        with suppress(Unavailable):
            record = self._store.run(store.read_bundle(self._attempt.tenant, bundle))
            return "" if record is None else record.nonce
        return ""

    def read_job(self) -> store.JobView:
        """The attempt's job as it is now. Raises Unavailable when Redis did not answer for `CLAIM_SECONDS`."""
        return self._retry_until(store.read_job(self._attempt.tenant, self._attempt.job), CLAIM_SECONDS)

    def _retry_until(self, call: store.Call[T], seconds: float) -> T:
        deadline = monotonic() + seconds
        delays = self._retry_delays()
        while True:
            try:
                return self._store.run(call)
            except Unavailable as error:
                if monotonic() > deadline:
                    raise
                log.warning("control_redis_unavailable", error=str(error))
                threading.Event().wait(next(delays))

    def _retry_delays(self) -> Iterator[float]:
        """Delays between tries, which grow: thousands of supervisors may be trying."""
        delay, longest = RETRY_SECONDS
        while True:
            yield min(delay, self._heartbeat_seconds)
            delay = min(2 * delay, longest)

    def _run_renewals(self) -> None:
        began = monotonic()
        delays = self._retry_delays()
        waiting: deque[_Request] = deque()
        while self._command is not SupervisorCommand.LOST:
            if self._pubsub_thread.ident is None and monotonic() - began > SUBSCRIBE_AFTER_SECONDS:
                self._pubsub_thread.start()
            if not waiting:
                try:
                    waiting.append(self._requests.get(timeout=self._poll_timeout()))
                except queue.Empty:
                    waiting.append(_POLL)
            if self.main_thread.is_overdue:
                self._give_up()
                continue
            try:
                match waiting[0]:
                    case None:
                        break
                    case "poll":
                        self._poll_or_renew()
                    case ProfileState(number, state):
                        self._on_reply(
                            self._store.run(store.record_profile(self._attempt, self._claimant, number, state))
                        )
                    case tuple(findings):
                        posts = [webhooks.post_finding(self._attempt, self._claimant, each) for each in findings]
                        held = self._store.run_all(posts)
                        self._on_reply(all(held))
                    case milestone:
                        self._on_reply(
                            self._store.run(store.record_milestone(self._attempt, self._claimant, milestone))
                        )
                waiting.popleft()
                delays = self._retry_delays()
            except Unavailable as error:
                log.warning("control_redis_unavailable", error=str(error), silence=round(self.seconds_since_renewal, 1))
                threading.Event().wait(next(delays))
            except Exception:
                log.exception("lifeline_failed")  # it goes on: without renewals the fence ends a healthy run
                threading.Event().wait(next(delays))
        self._closed.set()
        if self._command is SupervisorCommand.LOST:
            self._end_ranks_if_stuck()

    def _end_ranks_if_stuck(self) -> None:
        """End the ranks of a lease that is lost, unless the main thread goes on and does that."""
        ticks, deadline = self.main_thread.ticks, monotonic() + LOST_SECONDS
        while self.main_thread.ticks == ticks:
            if monotonic() > deadline:
                self.main_thread.on_overdue()
                return
            threading.Event().wait(RETRY_SECONDS[0] / 10)

    def _give_up(self) -> None:
        """Renew the lease no more, and end the ranks. The log's file may be on the storage for which the main thread
        waits, so it comes last."""
        self._command = SupervisorCommand.LOST
        self.main_thread.on_overdue()
        log.error("main_thread_stands_still")

    def _poll_timeout(self) -> float:
        """How long to wait for a request before the next poll."""
        until_renewal = max(0.0, self._heartbeat_seconds - self.seconds_since_renewal)
        return until_renewal if self._is_subscribed else min(until_renewal, POLL_SECONDS)

    def _poll_or_renew(self) -> None:
        if self.seconds_since_renewal < self._heartbeat_seconds:
            self._on_command(self._store.run(store.read_command(self._attempt, self._claimant, self._part)))
            return
        before = monotonic()  # a renewal counts from when it was sent, not from its reply
        command = self._store.run(store.renew_lease(self._attempt, self._claimant, self._part))
        self._renewed_at = before
        self._on_command(command)

    def _on_command(self, command: SupervisorCommand) -> None:
        """Take a command. That for a profile goes on until it is recorded that the ranks know of it."""
        self._command = SupervisorCommand.GO if command is SupervisorCommand.PROFILE else command
        if command is SupervisorCommand.PROFILE:
            self._profile_request = self._store.run(store.read_profile(self._attempt))

    def _listen_for_commands(self) -> None:
        """Have the first thread poll at once when new commands are announced, and each time that this thread has
        subscribed: what was announced before is lost."""
        pubsub = self._store.client.pubsub()  # type: ignore[no-untyped-call]
        delays = self._retry_delays()
        while not self._closed.is_set():
            try:
                if not pubsub.subscribed:
                    pubsub.subscribe(commands_channel(self._node))
                if pubsub.get_message(timeout=PUBSUB_WAIT_SECONDS) is not None:
                    delays = self._retry_delays()
                    self._is_subscribed = True
                    self._requests.put(_POLL)
            except Exception as error:  # noqa: BLE001  (a client that is closed meanwhile raises what it likes)
                self._is_subscribed = False
                if not self._closed.wait(next(delays)):
                    log.warning("orders_not_heard", error=str(error))
        pubsub.close()

    def _on_reply(self, is_held: bool) -> None:
        if not is_held:
            self._command = SupervisorCommand.LOST
