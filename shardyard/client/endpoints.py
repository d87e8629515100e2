"""One function per route of the API: what to ask, and what the answer is."""

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from shardyard.client import models
from shardyard.client.transport import READ_SECONDS, Call
from shardyard.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from shardyard.client.report import Plan, SplitReport
    from shardyard.contract.report_diff import ReportDiff

#: A job spec: a mapping, JSON as text or bytes, or the path of a file with JSON.
Spec = Mapping[str, Any] | str | bytes | os.PathLike[str]

UPLOAD_BYTES = 256 * 1024
#: The service unpacks an upload to check it before it answers.
UPLOAD_SECONDS = 300.0
#: An event stream that is alive says something every 15 seconds.
SILENT_SECONDS = 50.0
#: The longest that the service holds a request until a job changes.
MAX_WAIT_SECONDS = 60.0
_JSON = {"Content-Type": "application/json"}
_TEXT = {"Accept": "text/plain"}


def spec_body(spec: Spec) -> bytes:
    """A job spec as JSON.

    Raises:
        InvalidRequest: the file cannot be read, or the mapping holds what JSON does not have.
    """
    if isinstance(spec, bytes):
        return spec
    if isinstance(spec, str) and spec.lstrip().startswith("{"):
        return spec.encode()
    if isinstance(spec, Mapping):
        try:
            return json.dumps(spec).encode()
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"the job spec cannot be written as JSON: {error}") from error
    try:
        return Path(spec).read_bytes()
    except OSError as error:
        raise InvalidRequest(f"cannot read the job spec {os.fspath(spec)}: {error.strerror}") from error


# -- jobs ------------------------------------------------------------------------------------------


def submit(spec: Spec, key: str | None = None) -> Call[models.JobStatus]:
    return Call(
        method="POST",
        path="/v1/jobs",
        kind=models.JobStatus,
        content=spec_body(spec),
        headers=_JSON | {"Idempotency-Key": key or str(uuid.uuid4())},
        repeat=True,
    )


def plan(spec: Spec) -> "Call[Plan]":
    from shardyard.client.report import Plan

    return Call(method="POST", path="/v1/plan", kind=Plan, content=spec_body(spec), headers=_JSON, repeat=True)


def plan_text(spec: Spec) -> Call[str]:
    headers = _JSON | _TEXT
    return Call(method="POST", path="/v1/plan", kind=str, content=spec_body(spec), headers=headers, repeat=True)


def jobs(**filters: Any) -> Call[models.JobPage]:
    """One page, newest first. Filters: state, pool, label, name, archived, limit, cursor."""
    return _get("/v1/jobs", models.JobPage, **filters)


def job(job: str, *, wait: float | None = None, tag: str | None = None) -> Call[models.JobStatus]:
    """With `wait`, held by the service until the job is no longer as it was under the ETag `tag`."""
    headers = {} if tag is None else {"If-None-Match": tag}
    call = _get(_path("jobs", job), models.JobStatus, wait=wait)
    return _with(call, headers=headers, read_seconds=READ_SECONDS + (wait or 0.0))


def resubmit(job: str, key: str | None = None) -> Call[models.JobStatus]:
    headers = {"Idempotency-Key": key or str(uuid.uuid4())}
    path = _path("jobs", job, "resubmit")
    return Call(method="POST", path=path, kind=models.JobStatus, headers=headers, repeat=True)


def cancel(job: str) -> Call[models.JobStatus]:
    return Call(method="POST", path=_path("jobs", job, "cancel"), kind=models.JobStatus, repeat=True)


def cancel_many(**chosen: Any) -> Call[models.Cancelled]:
    """All jobs that match: state, pool, label, name; or all=True. Ask again while `complete` is false."""
    body = json.dumps(chosen).encode()
    return Call(method="POST", path="/v1/jobs/cancel", kind=models.Cancelled, content=body, headers=_JSON)


def delete(job: str) -> Call[None]:
    return Call(method="DELETE", path=_path("jobs", job), kind=NoneType)


def attempts(job: str) -> Call[models.AttemptList]:
    return _get(_path("jobs", job, "attempts"), models.AttemptList)


def splits(job: str, *, attempt: int | None = None, device: int | None = None) -> "Call[SplitReport]":
    from shardyard.client.report import SplitReport

    return _get(_path("jobs", job, "splits"), SplitReport, attempt=attempt, device=device)


def splits_as(
    kind: str, job: str, *, attempt: int | None = None, device: int | None = None, by: str | None = None
) -> Call[bytes]:
    """The split report as another media type: "text/plain", "text/html", "image/svg+xml". `by`: what pictures show."""
    call = _get(_path("jobs", job, "splits"), bytes, attempt=attempt, device=device, by=by)
    return _with(call, headers={"Accept": kind})


def splits_diff(job: str, against: str, *, attempt: int | None = None) -> "Call[ReportDiff]":
    from shardyard.contract.report_diff import ReportDiff

    return _get(_path("jobs", job, "splits", "diff"), ReportDiff, against=against, attempt=attempt)


def splits_diff_as(kind: str, job: str, against: str, *, attempt: int | None = None) -> Call[bytes]:
    """The same as another media type: "text/plain", "text/html"."""
    call = _get(_path("jobs", job, "splits", "diff"), bytes, against=against, attempt=attempt)
    return _with(call, headers={"Accept": kind})


def logs(job: str, **filters: Any) -> Call[models.LogPage]:
    """One page of lines. Filters: device, rank, stream, after, limit, tail, from_step, to_step, attempt."""
    return _get(_path("jobs", job, "logs"), models.LogPage, **filters)


def metrics(job: str, **filters: Any) -> Call[models.MetricList]:
    """Filters: device, name, after, points, attempt."""
    return _get(_path("jobs", job, "metrics"), models.MetricList, **filters)


def artifacts(job: str, *, attempt: int | None = None) -> Call[models.ArtifactList]:
    return _get(_path("jobs", job, "artifacts"), models.ArtifactList, attempt=attempt)


def artifact(job: str, path: str, *, attempt: int | None = None) -> Call[bytes]:
    return _get(_path("jobs", job, "artifacts", quote(path)), bytes, attempt=attempt)


# -- events ----------------------------------------------------------------------------------------


def job_events(
    job: str, *, logs: Sequence[int] | str | None = None, last: str | None = None, tail: int | None = None
) -> Call[bytes]:
    """`logs`: "all", or logical devices whose lines come too; `tail`: so many of each from before, instead of all."""
    devices = logs if logs is None or isinstance(logs, str) else ",".join(map(str, logs))
    return _events(_path("jobs", job, "events"), last, logs=devices or None, tail=tail)


def service_events(*, last: str | None = None) -> Call[bytes]:
    return _events("/v1/events", last)


def _events(path: str, last: str | None, **params: Any) -> Call[bytes]:
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
    return _with(_get(path, bytes, **params), headers=headers, read_seconds=SILENT_SECONDS)


# -- bundles ---------------------------------------------------------------------------------------


def upload_bundle(zipped: BinaryIO, advanced: Callable[[int], None] = lambda count: None) -> Call[models.Bundle]:
    """`advanced` hears how many bytes went out each time, and a negative number where they are sent again."""
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

    return Call(
        method="POST",
        path="/v1/bundles",
        kind=models.Bundle,
        headers={"Content-Type": "application/zip", "Content-Length": str(size)},
        make=body,
        read_seconds=UPLOAD_SECONDS,
        repeat=True,
    )


def bundle(bundle: str) -> Call[models.BundleContents]:
    return _get(_path("bundles", bundle), models.BundleContents)


# -- the service -----------------------------------------------------------------------------------


def recipes() -> Call[Any]:
    return _get("/v1/recipes", Any)


def pools() -> Call[models.PoolList]:
    return _get("/v1/pools", models.PoolList)


def nodes() -> Call[models.NodeList]:
    return _get("/v1/nodes", models.NodeList)


def drain(node: str, *, deadline_seconds: float | None = None) -> Call[models.Node]:
    body = b"" if deadline_seconds is None else json.dumps({"deadline_seconds": deadline_seconds}).encode()
    path = _path("nodes", node, "drain")
    return Call(method="POST", path=path, kind=models.Node, content=body, headers=_JSON, repeat=True)


def undrain(node: str) -> Call[models.Node]:
    return Call(method="DELETE", path=_path("nodes", node, "drain"), kind=models.Node, repeat=True)


def quarantine(node: str, device: int, reason: str) -> Call[models.Node]:
    path, body = _path("nodes", node, "devices", str(device), "quarantine"), json.dumps({"reason": reason}).encode()
    return Call(method="POST", path=path, kind=models.Node, content=body, headers=_JSON, repeat=True)


def unquarantine(node: str, device: int) -> Call[models.Node]:
    path = _path("nodes", node, "devices", str(device), "quarantine")
    return Call(method="DELETE", path=path, kind=models.Node, repeat=True)


def forget(node: str) -> Call[None]:
    return Call(method="DELETE", path=_path("nodes", node), kind=NoneType)


def tokens() -> Call[models.TokenList]:
    return _get("/v1/tokens", models.TokenList)


def create_token(
    name: str, *, scopes: Sequence[str], tenant: str | None = None, expires_in_seconds: int | None = None
) -> Call[models.NewToken]:
    """Not repeated: that would make two."""
    fields = {"name": name, "scopes": list(scopes), "tenant": tenant, "expires_in_seconds": expires_in_seconds}
    body = json.dumps({field: value for field, value in fields.items() if value is not None}).encode()
    return Call(method="POST", path="/v1/tokens", kind=models.NewToken, content=body, headers=_JSON)


def revoke_token(token: str) -> Call[None]:
    return Call(method="DELETE", path=_path("tokens", token), kind=NoneType)


def readiness() -> Call[models.Readiness]:
    return _with(_get("/readyz", models.Readiness), read_seconds=3.0)


def _get(path: str, kind: Any, **params: Any) -> Call[Any]:
    return Call(method="GET", path=path, kind=kind, params=params, repeat=True)


def _with(call: Call[Any], **changed: Any) -> Call[Any]:
    return replace(call, **changed)


def _path(collection: str, name: str, *rest: str) -> str:
    if not name:
        raise InvalidRequest(f"an empty id names none of the {collection}")
    return "/".join(["/v1", collection, quote(name, safe=""), *rest])
