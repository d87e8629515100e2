"""Operations of more than one request, written once for both clients (`shardyard.client.transport` runs them).

answered   a request, repeated where that is safe
wait       a job until it ends
pages      all jobs of a list, page by page
follow     the events of a job, over broken connections and restarts of the service
log_pages  lines of a job, page by page, and on to its end
submit_bundled  a job with the code that it needs
"""

import random
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import msgspec

from shardyard.client import endpoints
from shardyard.client.problems import error_of, retry_after
from shardyard.client.transport import (
    Flow,
    HttpAnswer,
    HttpCall,
    Items,
    NotSent,
    OpenStep,
    PauseStep,
    ReadStep,
    SendStep,
    YieldStep,
)
from shardyard.contract.errors import BodyTooLarge, JobNotFinished, ShardyardError, Unavailable, UnknownBundle
from shardyard.contract.responses import JobStatus, JobSummary, LogPage, ProfileView, SeriesView
from shardyard.formatting import byte_count

if TYPE_CHECKING:
    from shardyard.bundling.pack import WrittenBundle

T = TypeVar("T")

ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 0.1
#: The longest that `Retry-After` is heeded between two attempts; who asks for more is told to the caller at once.
MAX_PAUSE_SECONDS = 10.0
#: A service that restarts is back well within this time; what waits or follows goes on that long without it.
PATIENCE_SECONDS = 120.0
#: How long the service is asked to hold a request, and how often logs are asked for.
HELD_SECONDS = 25.0
POLL_SECONDS = 0.4
#: A service that is about to stop holds nothing: it is asked again after this.
HASTE_SECONDS = 0.1
LINES_PER_PAGE = 1000
JOBS_PER_PAGE = 200
#: How long a job that has ended may take to give up its devices.
RELEASE_SECONDS = 10.0


class RetryBudget:
    """The time for which the service has been away, and the pauses between attempts to reach it."""

    def __init__(self, deadline: float | None = None) -> None:
        self._deadline = deadline
        self.heard()

    def heard(self) -> None:
        """Reset the budget, because the service has answered."""
        self._last = time.monotonic()
        self._pause = FIRST_PAUSE_SECONDS

    def pause(self, error: Unavailable) -> PauseStep:
        """The pause before the next attempt. Raises `error` if the service has been away for too long."""
        now = time.monotonic()
        if now - self._last > PATIENCE_SECONDS:
            raise error
        pause = jitter(self._pause)
        self._pause = min(self._pause * 2, 2.0)
        return PauseStep(pause if self._deadline is None else max(0.0, min(pause, self._deadline - now)))


def jitter(seconds: float) -> float:
    """A random pause, so that many clients do not return at the same moment after a restart."""
    return seconds * random.uniform(0.5, 1.5)  # noqa: S311  # spreads clients, guards nothing


# -- one request -----------------------------------------------------------------------------------


def send_repeatedly(call: HttpCall[Any], attempts: int = ATTEMPTS) -> Flow[HttpAnswer]:
    """The answer to a call; a call that is safe to repeat is repeated while the service is away.

    Raises:
        ShardyardError: what the service said, as one of its classes.
    """
    pause = FIRST_PAUSE_SECONDS
    for left in reversed(range(attempts)):
        asked = None
        try:
            answer: HttpAnswer = yield SendStep(call)
            if not answer.is_error:
                return answer
            asked = retry_after(answer)
            raise error_of(answer)
        except Unavailable as error:
            safe = call.repeat or isinstance(error, NotSent)
            if not left or not safe or (asked or 0.0) > MAX_PAUSE_SECONDS:
                raise
        yield PauseStep(max(jitter(pause), asked or 0.0))
        pause *= 3
    raise AssertionError("attempts is 0")


def call_endpoint(call: HttpCall[T], attempts: int = ATTEMPTS) -> Flow[T]:
    """The decoded answer of a call."""
    answer = yield from send_repeatedly(call, attempts)
    return parse_answer(call, answer)


def call_for_json(call: HttpCall[Any], attempts: int = ATTEMPTS) -> Flow[Any]:
    """The answer's JSON unchanged, including fields that this version does not know."""
    answer = yield from send_repeatedly(call, attempts)
    return _decode_json(call, answer, Any)


def parse_answer(call: HttpCall[T], answer: HttpAnswer) -> T:
    if call.kind is bytes:
        found: Any = answer.body
    elif call.kind is str:
        found = answer.body.decode(errors="replace")
    elif call.kind is type(None):
        found = None
    else:
        found = _decode_json(call, answer, call.kind)
    return found  # type: ignore[no-any-return]


def _decode_json(call: HttpCall[Any], answer: HttpAnswer, kind: Any) -> Any:
    try:
        if getattr(kind, "from_json", None) is not None:
            return kind.from_json(answer.body)
        return msgspec.json.decode(answer.body, type=kind)
    except (ValueError, UnicodeDecodeError) as error:
        name = getattr(kind, "__name__", "JSON")
        raise ShardyardError(f"the answer to {call.method} {call.path} is not a {name}: {error}") from error


def missing_parts() -> Flow[dict[str, str] | None]:
    """The parts that the service still needs before it can run jobs; None if it does not answer. One request."""
    try:
        answer: HttpAnswer = yield SendStep(endpoints.check_readiness())
        checks = parse_answer(endpoints.check_readiness(), answer).checks
    except ShardyardError:
        return None
    return {part: state for part, state in checks.items() if state != "ok"} if answer.is_error else {}


# -- jobs ------------------------------------------------------------------------------------------


def wait_for_end(job: str, timeout: float | None) -> Flow[JobStatus]:
    """The job's status once it has ended. The service holds each request until something changes.

    Raises:
        TimeoutError: it has not ended within `timeout` seconds; None: there is no limit.
        Unavailable: the service was away for longer than `PATIENCE_SECONDS`.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    patience = RetryBudget(deadline)
    status: JobStatus | None = None
    tag: str | None = None
    while True:
        left = HELD_SECONDS if deadline is None else max(0.0, min(HELD_SECONDS, deadline - time.monotonic()))
        call = endpoints.get_job(job, wait=round(left, 3) if tag else None, tag=tag)
        asked = time.monotonic()
        try:
            answer: HttpAnswer = yield SendStep(call)
            if answer.is_error:
                raise error_of(answer)
            patience.heard()
            if answer.status == 200:
                status, tag = parse_answer(call, answer), answer.headers.get("etag")
            pause = PauseStep(
                HASTE_SECONDS if answer.status != 200 and time.monotonic() - asked < HASTE_SECONDS else 0.0
            )
        except Unavailable as error:
            pause = patience.pause(error)
        if status is not None and status.ended:
            return status
        if deadline is not None and time.monotonic() >= deadline:
            state = "unknown" if status is None else f"{status.state}: {status.reason.message}"
            raise TimeoutError(f"job {job} has not ended within {timeout:g} seconds; it is {state}")
        if pause.seconds:
            yield pause


def delete_job(job: str) -> Flow[None]:
    """Delete a job that has ended. Its devices are released a moment after its end, and only then can it be deleted.

    Raises:
        JobNotFinished: it has not ended.
    """
    deadline = time.monotonic() + RELEASE_SECONDS
    while True:
        try:
            yield from call_endpoint(endpoints.delete_job(job))
            return
        except JobNotFinished:
            status = yield from call_endpoint(endpoints.get_job(job))
            if not status.ended or time.monotonic() >= deadline:
                raise
        yield PauseStep(FIRST_PAUSE_SECONDS)


def list_all_jobs(limit: int | None = None, **filters: Any) -> Items[JobSummary]:
    """All jobs of a list, newest first, at most `limit`."""
    cursor: str | None = None
    given = 0
    while limit is None or given < limit:
        size = JOBS_PER_PAGE if limit is None else min(JOBS_PER_PAGE, limit - given)
        page = yield from call_endpoint(endpoints.list_jobs(**filters, limit=size, cursor=cursor))
        for job in page.jobs:
            yield YieldStep(job)
        given += len(page.jobs)
        cursor = page.next
        if cursor is None:
            return


def cancel_many(chosen: dict[str, Any]) -> Flow[tuple[int, int]]:
    """The numbers of jobs that were cancelled at once, and that are being ended. A call that ran out of time is
    repeated."""
    cancelled = cancelling = 0
    while True:
        did = yield from call_endpoint(endpoints.cancel_many(**chosen))
        cancelled, cancelling = cancelled + did.cancelled, cancelling + did.cancelling
        if did.complete:
            return cancelled, cancelling


def record_profile(job: str, steps: int) -> Flow[ProfileView]:
    """A profile of a running job, once every rank has answered. The service has a deadline for that."""
    asked = yield from call_endpoint(endpoints.request_profile(job, steps))
    while True:
        yield PauseStep(POLL_SECONDS)
        listed = yield from call_endpoint(endpoints.list_profiles(job, attempt=asked.attempt))
        for profile in listed.profiles:
            if profile.number == asked.number and profile.state != "recording":
                return profile


# -- events ----------------------------------------------------------------------------------------


class _EventFilter:
    """The state of a reader of a job's events: whether the end came, and the last state that was reported."""

    def __init__(self) -> None:
        self.over = False
        self._said: tuple[Any, ...] | None = None

    def takes(self, event: Any) -> bool:
        """Whether an event is new. A stream begins with the current state, also when it is opened again."""
        kind = type(event).__name__
        self.over = self.over or kind == "Ended"
        if kind != "StateChanged":
            return True
        says = event.state, event.reason, event.attempt, event.version
        news, self._said = says != self._said, says
        return news


def _ignore_absence(error: ShardyardError) -> None: ...


def follow_job(
    job: str,
    logs: Sequence[int] | str | None = None,
    after: str | None = None,
    tail: int | None = None,
    away: Callable[[ShardyardError], None] = _ignore_absence,
    stream: Sequence[str] | str | None = None,
) -> Items[Any]:
    """A job's events; the last one is `Ended`. `away` hears each time that the service could not be reached.

    Raises:
        NotFound: there is no such job.
        Unavailable: the service was away for longer than `PATIENCE_SECONDS`.
    """
    reader = _EventFilter()
    last = after
    patience = RetryBudget()
    while not reader.over:
        call = endpoints.job_events(job, logs=logs, last=last, tail=tail, stream=stream)
        last = yield from _read_stream(call, last, reader, patience, away)
        if not reader.over:
            yield PauseStep(jitter(FIRST_PAUSE_SECONDS))  # the service closes a stream in order when it stops


def service_events(after: str | None = None, away: Callable[[ShardyardError], None] = _ignore_absence) -> Items[Any]:
    """Events of the whole service, without an end. Raises Unavailable as `follow` does."""
    last = after
    patience = RetryBudget()
    while True:
        last = yield from _read_stream(endpoints.service_events(last=last), last, _EventFilter(), patience, away)
        yield PauseStep(jitter(FIRST_PAUSE_SECONDS))


def _read_stream(
    call: HttpCall[bytes],
    last: str | None,
    reader: _EventFilter,
    patience: RetryBudget,
    away: Callable[[ShardyardError], None],
) -> Generator[Any, Any, str | None]:
    """The events of one connection; returns the id to resume from."""
    from shardyard.client.events import EventParser, decode_event

    try:
        answer: HttpAnswer = yield OpenStep(call)
        if answer.is_error:
            raise error_of(answer)
        if answer.status == 204:  # the service knows that this reader was told the end
            reader.over = True
            return last
        parser = EventParser()
        while part := (yield ReadStep()):
            patience.heard()
            for message in parser.feed(part):
                event = decode_event(message)
                last = message.id or last
                if event is not None and reader.takes(event):
                    yield YieldStep(event)
    except Unavailable as error:
        away(error)
        yield patience.pause(error)
    return last


# -- logs and metrics ------------------------------------------------------------------------------


def log_pages(
    job: str, *, follow: bool = False, tail: int | None = None, after: str | None = None, **filters: Any
) -> Items[LogPage]:
    """Pages of lines, those without lines left out unless they say that a log is cut off; with `follow`, until the job
    has ended, over all further attempts.

    Raises:
        NotFound: there is no such job.
        Unavailable: the service was away; with `follow`, for longer than `PATIENCE_SECONDS`.
    """
    cursor = after
    attempt = filters.pop("attempt", None)
    told = 0  # the attempt of which it was said that its log is cut off
    patience = RetryBudget()
    while True:
        fresh = {"tail": tail, "attempt": attempt} if cursor is None else {"after": cursor}
        try:
            page = yield from call_endpoint(endpoints.read_logs(job, limit=LINES_PER_PAGE, **filters, **fresh))
            has_moved = page.next not in (None, cursor) and not page.ended
            cursor = page.next or cursor
            if page.lines or page.dropped:
                yield YieldStep(page)
                continue  # there may be more already
            if has_moved:  # past many lines that were not asked for
                continue
            if page.cut_off and told != page.attempt:
                told = page.attempt
                yield YieldStep(page)
            if not follow:
                return
            status = yield from call_endpoint(endpoints.get_job(job))
            if page.ended and (status.ended or attempt is not None):
                return
            if status.attempt > page.attempt and attempt is None:
                cursor = tail = None  # the cursor belongs to the attempt before
            patience.heard()
        except Unavailable as error:
            if not follow:
                raise
            yield patience.pause(error)
            continue
        yield PauseStep(POLL_SECONDS)


def read_metrics(job: str, *, points: int | None = None, **filters: Any) -> Flow[list[SeriesView]]:
    """Every series with all its points, or reduced to at most `points` buckets each."""
    first = yield from call_endpoint(endpoints.read_metrics(job, points=points, **filters))
    series: list[SeriesView] = []
    for part in first.series:
        whole = part
        while points is None and whole.next < whole.last:
            chosen = {"device": part.device, "name": part.name, "attempt": first.attempt or filters.get("attempt")}
            more = yield from call_endpoint(endpoints.read_metrics(job, after=whole.next, **chosen))
            found = next((one for one in more.series if one.points), None)
            if found is None:
                break  # they were there when the first page was made, and are no more
            whole = msgspec.structs.replace(found, points=whole.points + found.points)
        series.append(whole)
    return series


# -- files -----------------------------------------------------------------------------------------


def download_artifact(job: str, path: str, attempt: int | None) -> Items[bytes]:
    """The bytes of one file, part by part, as they arrive. Raises `Unavailable` if the connection breaks."""
    call = endpoints.download_artifact(job, path, attempt=attempt)
    answer: HttpAnswer = yield OpenStep(call)
    if answer.is_error:
        raise error_of(answer)
    while part := (yield ReadStep()):
        yield YieldStep(part)


# -- scripts ---------------------------------------------------------------------------------------


def submit_bundled(
    spec: dict[str, Any],
    file: BinaryIO,
    bundle: "WrittenBundle",
    advanced: Callable[[int], None] = lambda count: None,
    key: str | None = None,
) -> Flow[JobStatus]:
    """Submit a job that needs a bundle, which is sent only if the service says that it lacks it.

    Raises:
        BodyTooLarge: the bundle is larger than this service takes.
    """
    key = key or str(uuid.uuid4())
    try:
        found = yield from call_endpoint(endpoints.submit_job(spec, key))
        return found
    except UnknownBundle:
        pass
    try:
        stored = yield from call_endpoint(endpoints.upload_bundle(file, advanced))
    except BodyTooLarge as error:
        raise BodyTooLarge(f"a bundle of {byte_count(bundle.bytes)} is too large: {error.message}") from error
    if stored.id != bundle.id:
        raise ShardyardError(f"the service stored {stored.id} in the place of {bundle.id}; submit again")
    found = yield from call_endpoint(endpoints.submit_job(spec, key))
    return found
