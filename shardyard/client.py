"""A thin HTTP client of the service: one method per route, answers as the JSON they are.

Errors are the classes of `jobs.errors`, chosen by the answer's `code`; a service that cannot be
reached is `Unavailable`. Requests that are safe to repeat (reads, and submits, which always carry
an Idempotency-Key) are repeated a few times with a growing pause.
"""

import contextlib
import json
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, Self
from urllib.parse import quote

import httpx

from jobs.errors import (
    Conflict,
    FieldError,
    Forbidden,
    InvalidRequest,
    NotFound,
    ShardyardError,
    Unauthenticated,
    Unavailable,
)

ATTEMPTS = 4
FIRST_PAUSE_SECONDS = 0.1
TIMEOUT = httpx.Timeout(30, connect=5)
UPLOAD_BYTES = 256 * 1024
#: The service unpacks an upload to check it before it answers.
UPLOAD_TIMEOUT = httpx.Timeout(30, connect=5, read=300)
#: Statuses of a proxy or a service that is just restarting.
PASSING = frozenset({502, 503, 504})

#: For answers that carry no code of ours, for example a proxy's.
_BY_STATUS: dict[int, type[ShardyardError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    422: InvalidRequest,
    **dict.fromkeys(PASSING, Unavailable),
}

Json = dict[str, Any]


class Client:
    """Talks to the service at `url` as the owner of `token`. Not for several threads at once."""

    def __init__(self, url: str, token: str | None = None, *, attempts: int = ATTEMPTS) -> None:
        self.url = url.rstrip("/")
        self._attempts = attempts
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    # -- jobs --------------------------------------------------------------------------------------

    def submit(self, spec: bytes | str | Mapping[str, Any], *, key: str | None = None) -> Json:
        """Create a job from a spec (JSON text, or a mapping). The same `key` never makes a second job."""
        body = json.dumps(spec) if isinstance(spec, Mapping) else spec
        return self._json("POST", "/v1/jobs", content=body, headers={"Idempotency-Key": key or str(uuid.uuid4())})

    def plan(self, spec: bytes | str | Mapping[str, Any]) -> Json:
        """The split that a spec would give; nothing is created."""
        body = json.dumps(spec) if isinstance(spec, Mapping) else spec
        return self._json("POST", "/v1/plan", content=body)

    def plan_text(self, spec: bytes | str | Mapping[str, Any]) -> str:
        body = json.dumps(spec) if isinstance(spec, Mapping) else spec
        return self._send("POST", "/v1/plan", content=body, headers={"Accept": "text/plain"}).text

    def jobs(self, **filters: Any) -> Json:
        """One page, newest first. Filters: state, pool, label, name, archived, limit, cursor."""
        return self._json("GET", "/v1/jobs", params=filters)

    def job(self, job: str, *, wait: float | None = None) -> Json:
        """The status; with `wait`, held by the service until it changes, so many seconds (60 at most)."""
        timeout = TIMEOUT if wait is None else httpx.Timeout(30 + wait, connect=5)
        return self._json("GET", _path("jobs", job), params={"wait": wait}, timeout=timeout)

    def resubmit(self, job: str, *, key: str | None = None) -> Json:
        """A new job of the same spec. The same `key` never makes a second one."""
        return self._json("POST", _path("jobs", job, "resubmit"), headers={"Idempotency-Key": key or str(uuid.uuid4())})

    def cancel(self, job: str) -> Json:
        return self._json("POST", _path("jobs", job, "cancel"))

    def cancel_many(self, **chosen: Any) -> Json:
        """Cancel all jobs that match: state, pool, label, name; or all=True. Ask again while `complete` is false."""
        return self._json("POST", "/v1/jobs/cancel", json=chosen)

    def delete(self, job: str) -> None:
        self._send("DELETE", _path("jobs", job))

    def attempts(self, job: str) -> Json:
        return self._json("GET", _path("jobs", job, "attempts"))

    def splits(self, job: str, *, attempt: int | None = None, device: int | None = None) -> Json:
        return self._json("GET", _path("jobs", job, "splits"), params={"attempt": attempt, "device": device})

    def splits_text(self, job: str, *, attempt: int | None = None, device: int | None = None) -> str:
        params = {"attempt": attempt, "device": device}
        return self._send("GET", _path("jobs", job, "splits"), params=params, headers={"Accept": "text/plain"}).text

    def splits_diff(self, job: str, against: str, *, attempt: int | None = None) -> Json:
        """Two split reports side by side."""
        params = {"against": against, "attempt": attempt}
        return self._json("GET", _path("jobs", job, "splits", "diff"), params=params)

    def splits_diff_text(self, job: str, against: str, *, attempt: int | None = None) -> str:
        params = {"against": against, "attempt": attempt}
        headers = {"Accept": "text/plain"}
        return self._send("GET", _path("jobs", job, "splits", "diff"), params=params, headers=headers).text

    def artifacts(self, job: str, *, attempt: int | None = None) -> Json:
        return self._json("GET", _path("jobs", job, "artifacts"), params={"attempt": attempt})

    def download(self, job: str, artifact: str, *, attempt: int | None = None) -> Iterator[bytes]:
        """The bytes of one file, part by part, as they come."""
        params = {} if attempt is None else {"attempt": attempt}
        path = _path("jobs", job, "artifacts", quote(artifact))
        with _translated(self.url), self._http.stream("GET", path, params=params) as response:
            if response.is_error:
                response.read()
                raise _error(response)
            yield from response.iter_bytes()

    def logs(self, job: str, **filters: Any) -> Json:
        """One page of lines. Filters: device, rank, stream, after, limit, tail, from_step, to_step."""
        return self._json("GET", _path("jobs", job, "logs"), params=filters)

    def metrics(self, job: str, **filters: Any) -> Json:
        return self._json("GET", _path("jobs", job, "metrics"), params=filters)

    # -- bundles -----------------------------------------------------------------------------------

    def upload_bundle(self, zipped: BinaryIO, advanced: Callable[[int], None] = lambda count: None) -> Json:
        """Send a zip of code; its id goes into `program.bundle`. The same bytes have the same id.

        `advanced` hears how many bytes went out each time, and a negative number where they are sent again.

        Raises:
            BadBundle: it breaks a rule on bundles.
            BodyTooLarge: it is larger than this service takes.
        """
        size = zipped.seek(0, os.SEEK_END)
        sent = 0

        def body() -> Iterator[bytes]:
            nonlocal sent
            advanced(-sent)
            sent = zipped.seek(0)
            while part := zipped.read(UPLOAD_BYTES):
                yield part
                sent += len(part)
                advanced(len(part))

        headers = {"Content-Type": "application/zip", "Content-Length": str(size)}
        return self._json("POST", "/v1/bundles", again=True, make=body, headers=headers, timeout=UPLOAD_TIMEOUT)

    def bundle(self, bundle: str) -> Json:
        """What a bundle holds: `files` with their sizes. Raises NotFound."""
        return self._json("GET", _path("bundles", bundle))

    def has_bundle(self, bundle: str) -> bool:
        """Whether the service has a bundle of this id, for this token's owner."""
        try:
            self.bundle(bundle)
        except NotFound:
            return False
        return True

    # -- the service -------------------------------------------------------------------------------

    def missing(self) -> dict[str, str] | None:
        """What the service still needs before it can run jobs, part by part; empty when it is ready.
        None: it does not answer. Asked once, without a token."""
        try:
            response = self._http.get("/readyz", timeout=3)
            checks = response.json().get("checks", {})
        except (httpx.TransportError, ValueError, AttributeError):
            return None
        return {} if response.is_success else {part: state for part, state in checks.items() if state != "ok"}

    def pools(self) -> Json:
        return self._json("GET", "/v1/pools")

    def nodes(self) -> Json:
        return self._json("GET", "/v1/nodes")

    def drain(self, node: str, *, undo: bool = False) -> Json:
        """Give a node no new work; with `undo`, give it some again."""
        return self._json("DELETE" if undo else "POST", _path("nodes", node, "drain"))

    def forget(self, node: str) -> None:
        """Drop a node that is down for good."""
        self._send("DELETE", _path("nodes", node))

    def recipes(self) -> Json:
        return self._json("GET", "/v1/recipes")

    def tokens(self) -> Json:
        return self._json("GET", "/v1/tokens")

    def create_token(self, **fields: Any) -> Json:
        """The answer shows the secret once. Fields: name, tenant, scopes."""
        return self._json("POST", "/v1/tokens", json=fields)

    def revoke_token(self, token: str) -> None:
        self._send("DELETE", _path("tokens", token))

    # -- one request -------------------------------------------------------------------------------

    def _json(self, method: str, path: str, **request: Any) -> Json:
        response = self._send(method, path, **request)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ShardyardError(f"{self.url} answered {method} {path} with something that is not a JSON object")
        return answer

    def _send(
        self,
        method: str,
        path: str,
        *,
        again: bool = False,
        make: Callable[[], Iterator[bytes]] | None = None,
        **request: Any,
    ) -> httpx.Response:
        """One request, repeated where that is safe; `again` says that it is. `make` gives the body anew each time."""
        if "params" in request:
            request["params"] = {name: value for name, value in request["params"].items() if value is not None}
        headers = {"Content-Type": "application/json"} | request.pop("headers", {})
        repeatable = again or method == "GET" or "Idempotency-Key" in headers
        left = self._attempts if repeatable else 1
        pause = FIRST_PAUSE_SECONDS
        while True:
            left -= 1
            try:
                if make is not None:
                    request["content"] = make()
                with _translated(self.url):
                    response = self._http.request(method, path, headers=headers, **request)
                if response.is_error:
                    raise _error(response)
                return response
            except Unavailable:
                if left <= 0:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  # spreads clients, guards nothing
            pause *= 3


def _path(collection: str, name: str, *rest: str) -> str:
    return "/".join(["/v1", collection, quote(name, safe=""), *rest])


@contextlib.contextmanager
def _translated(url: str) -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        raise Unavailable(f"{url} cannot be reached: {error or type(error).__name__}") from error
    except httpx.InvalidURL as error:
        raise InvalidRequest(f"{url!r} is not a URL: {error}") from error


def _error(response: httpx.Response) -> ShardyardError:
    """The answer's problem+json as an exception of this project."""
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    known = {kind.code: kind for kind in _tree(ShardyardError)}
    kind = known.get(str(problem.get("code"))) or _BY_STATUS.get(response.status_code, ShardyardError)
    message = problem.get("detail") or problem.get("title") or f"{response.status_code} {response.reason_phrase}"
    fields = tuple(FieldError(str(f.get("field")), str(f.get("message"))) for f in problem.get("errors") or ())
    return kind(str(message), fields=fields)


def _tree(root: type[ShardyardError]) -> Iterator[type[ShardyardError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)
