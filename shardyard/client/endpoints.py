"""One function per route of the API: what to ask, and what the answer is."""

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import NoneType
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from shardyard.client.notebook import SpecPlan
from shardyard.client.transport import READ_SECONDS, HttpCall
from shardyard.contract import audit, fleet, quotas, responses, scheduling, webhooks
from shardyard.contract.errors import InvalidRequest
from shardyard.contract.gate import GateVerdict
from shardyard.formatting import is_whole_id
from shardyard.specs.builders import Recipe
from shardyard.specs.spec_files import read_spec_file

if TYPE_CHECKING:
    from shardyard.client.report import SplitReport
    from shardyard.contract.report_diff import ReportDiff

#: A job spec: a `Recipe`, a mapping, JSON as text or bytes, or the path of a file with JSON or YAML.
Spec = Recipe | Mapping[str, Any] | str | bytes | os.PathLike[str]

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
        InvalidRequest: the file cannot be read or is no YAML, or the mapping holds what JSON does not have.
    """
    if isinstance(spec, bytes):
        return spec
    if isinstance(spec, str) and spec.lstrip().startswith("{"):
        return spec.encode()
    if isinstance(spec, Recipe):
        spec = spec.to_spec()
    if isinstance(spec, Mapping):
        try:
            return json.dumps(spec).encode()
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"the job spec cannot be written as JSON: {error}") from error
    return read_spec_file(spec)


# -- jobs ------------------------------------------------------------------------------------------


def submit_job(spec: Spec, key: str | None = None) -> HttpCall[responses.JobStatus]:
    return HttpCall(
        method="POST",
        path="/v1/jobs",
        kind=responses.JobStatus,
        content=spec_body(spec),
        headers=_JSON | {"Idempotency-Key": key or str(uuid.uuid4())},
        repeat=True,
    )


def plan_job(spec: Spec, *, against: str | None = None) -> HttpCall[SpecPlan]:
    """`against` is a job whose steps are compared with those planned."""
    return _plan_call(SpecPlan, spec, against, _JSON)


def plan_text(spec: Spec, *, against: str | None = None) -> HttpCall[str]:
    return _plan_call(str, spec, against, _JSON | _TEXT)


def _plan_call(kind: Any, spec: Spec, against: str | None, headers: Mapping[str, str]) -> HttpCall[Any]:
    params = {} if against is None else {"against": against}
    body = spec_body(spec)
    return HttpCall(
        method="POST", path="/v1/plan", kind=kind, params=params, content=body, headers=headers, repeat=True
    )


def list_jobs(**filters: Any) -> HttpCall[responses.JobList]:
    """One page, newest first. Filters: state, pool, label, name, archived, limit, cursor."""
    return get_request("/v1/jobs", responses.JobList, **filters)


def read_job_table(columns: Sequence[str], **filters: Any) -> HttpCall[responses.JobTable]:
    """One page of a list, with values of columns such as `loss`, `metrics.accuracy` and `spec.program.epochs`."""
    return get_request("/v1/jobs/table", responses.JobTable, columns=_join_names(columns), **filters)


def list_job_columns() -> HttpCall[responses.JobColumnList]:
    return get_request("/v1/jobs/columns", responses.JobColumnList)


def get_job(job: str, *, wait: float | None = None, tag: str | None = None) -> HttpCall[responses.JobStatus]:
    """With `wait`, held by the service until the job is no longer as it was under the ETag `tag`."""
    headers = {} if tag is None else {"If-None-Match": tag}
    call = get_request(build_path("jobs", job), responses.JobStatus, wait=wait)
    return replace(call, headers=headers, read_seconds=READ_SECONDS + (wait or 0.0))


def resolve_job(reference: str) -> HttpCall[responses.ResolvedJob]:
    """The job that a beginning or an end of its id, its name, `@last` or `@last~2` stands for."""
    return get_request("/v1/jobs/resolve", responses.ResolvedJob, ref=reference)


def find_job(reference: str) -> HttpCall[responses.JobStatus]:
    """A job by its id, which needs no search, or by a reference."""
    return get_job(reference) if is_whole_id(reference) else resolve_job(reference)


def resubmit_job(job: str, key: str | None = None) -> HttpCall[responses.JobStatus]:
    headers = {"Idempotency-Key": key or str(uuid.uuid4())}
    path = build_path("jobs", job, "resubmit")
    return HttpCall(method="POST", path=path, kind=responses.JobStatus, headers=headers, repeat=True)


def cancel_job(job: str) -> HttpCall[responses.JobStatus]:
    return HttpCall(method="POST", path=build_path("jobs", job, "cancel"), kind=responses.JobStatus, repeat=True)


def suspend_job(job: str) -> HttpCall[responses.JobStatus]:
    return HttpCall(method="POST", path=build_path("jobs", job, "suspend"), kind=responses.JobStatus, repeat=True)


def resume_job(job: str) -> HttpCall[responses.JobStatus]:
    return HttpCall(method="POST", path=build_path("jobs", job, "resume"), kind=responses.JobStatus, repeat=True)


def cancel_many(**chosen: Any) -> HttpCall[responses.CancelledJobs]:
    """All jobs that match: state, pool, label, name; or all=True. Ask again while `complete` is false."""
    body = json.dumps(chosen).encode()
    return HttpCall(method="POST", path="/v1/jobs/cancel", kind=responses.CancelledJobs, content=body, headers=_JSON)


def request_profile(job: str, steps: int | None = None) -> HttpCall[responses.ProfileView]:
    path = build_path("jobs", job, "profile")
    return _send_json("POST", path, responses.ProfileView, {"steps": steps}, repeat=False)


def list_profiles(job: str, *, attempt: int | None = None) -> HttpCall[responses.ProfileList]:
    return get_request(build_path("jobs", job, "profiles"), responses.ProfileList, attempt=attempt)


def delete_job(job: str) -> HttpCall[None]:
    return HttpCall(method="DELETE", path=build_path("jobs", job), kind=NoneType)


def list_attempts(job: str) -> HttpCall[responses.AttemptList]:
    return get_request(build_path("jobs", job, "attempts"), responses.AttemptList)


def get_report(job: str, *, attempt: int | None = None, device: int | None = None) -> "HttpCall[SplitReport]":
    from shardyard.client.report import SplitReport

    return get_request(build_path("jobs", job, "splits"), SplitReport, attempt=attempt, device=device)


def draw_report(
    kind: str,
    job: str,
    *,
    attempt: int | None = None,
    device: int | None = None,
    by: str | None = None,
    notes: bool | None = None,
) -> HttpCall[bytes]:
    """The split report as another media type: "text/plain", "text/html", "image/svg+xml". `by`: what pictures show;
    `notes`: whether text tells why numbers are missing."""
    call = get_request(build_path("jobs", job, "splits"), bytes, attempt=attempt, device=device, by=by, notes=notes)
    return replace(call, headers={"Accept": kind})


def compare_reports(job: str, against: str, *, attempt: int | None = None) -> "HttpCall[ReportDiff]":
    from shardyard.contract.report_diff import ReportDiff

    return get_request(build_path("jobs", job, "splits", "diff"), ReportDiff, against=against, attempt=attempt)


def draw_comparison(
    kind: str, job: str, against: str, *, attempt: int | None = None, notes: bool | None = None
) -> HttpCall[bytes]:
    """The same as another media type: "text/plain", "text/html"; `notes` as for `draw_report`."""
    path = build_path("jobs", job, "splits", "diff")
    call = get_request(path, bytes, against=against, attempt=attempt, notes=notes)
    return replace(call, headers={"Accept": kind})


def judge_job(job: str, **limits: Any) -> HttpCall[GateVerdict]:
    """Limits: max_time_imbalance, max_row_imbalance, max_idle, min_throughput, max_memory, no_finding, against,
    max_slowdown."""
    return _send_json("POST", build_path("jobs", job, "gate"), GateVerdict, limits)


def read_logs(job: str, *, stream: Sequence[str] | str | None = None, **filters: Any) -> HttpCall[responses.LogPage]:
    """One page of lines. `stream`: "all", or some of stdout, stderr, shard and service; None: those that suit the job's
    program. Filters: device, rank, after, limit, tail, from_step, to_step, from_line, before_line, search, attempt."""
    return get_request(build_path("jobs", job, "logs"), responses.LogPage, stream=_join_names(stream), **filters)


def read_metrics(job: str, **filters: Any) -> HttpCall[responses.MetricList]:
    """Filters: device, name, after, points, source ("program" or "hardware"), attempt."""
    return get_request(build_path("jobs", job, "metrics"), responses.MetricList, **filters)


def list_artifacts(job: str, *, attempt: int | None = None) -> HttpCall[responses.ArtifactList]:
    return get_request(build_path("jobs", job, "artifacts"), responses.ArtifactList, attempt=attempt)


def download_artifact(job: str, path: str, *, attempt: int | None = None) -> HttpCall[bytes]:
    return get_request(build_path("jobs", job, "artifacts", quote(path)), bytes, attempt=attempt)


# -- events ----------------------------------------------------------------------------------------


def job_events(
    job: str,
    *,
    logs: Sequence[int] | str | None = None,
    last: str | None = None,
    tail: int | None = None,
    stream: Sequence[str] | str | None = None,
) -> HttpCall[bytes]:
    """`logs`: "all", or logical devices whose lines come too; `stream`: of which streams, as for `read_logs`; `tail`:
    so many of each device from before, instead of all."""
    chosen = {"logs": _join_names(logs), "tail": tail, "stream": _join_names(stream)}
    return _stream_events(build_path("jobs", job, "events"), last, **chosen)


def _join_names(names: Sequence[int | str] | str | None) -> str | None:
    """Names or numbers as the service takes them, with commas between them; None where there is none."""
    return (names if names is None or isinstance(names, str) else ",".join(map(str, names))) or None


def service_events(*, last: str | None = None) -> HttpCall[bytes]:
    return _stream_events("/v1/events", last)


def _stream_events(path: str, last: str | None, **params: Any) -> HttpCall[bytes]:
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
    return replace(get_request(path, bytes, **params), headers=headers, read_seconds=SILENT_SECONDS)


# -- bundles ---------------------------------------------------------------------------------------


def upload_bundle(
    zipped: BinaryIO, advanced: Callable[[int], None] = lambda count: None
) -> HttpCall[responses.BundleView]:
    """`advanced` is called with the number of bytes after each part, and with a negative number if they are sent
    again."""
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

    return HttpCall(
        method="POST",
        path="/v1/bundles",
        kind=responses.BundleView,
        headers={"Content-Type": "application/zip", "Content-Length": str(size)},
        make=body,
        read_seconds=UPLOAD_SECONDS,
        repeat=True,
    )


def delete_bundle(bundle: str) -> HttpCall[None]:
    return HttpCall(method="DELETE", path=build_path("bundles", bundle), kind=NoneType)


def get_bundle(bundle: str) -> HttpCall[responses.BundleContents]:
    return get_request(build_path("bundles", bundle), responses.BundleContents)


# -- the service -----------------------------------------------------------------------------------


def list_recipes() -> HttpCall[Any]:
    return get_request("/v1/recipes", Any)


def list_pools() -> HttpCall[fleet.PoolList]:
    return get_request("/v1/pools", fleet.PoolList)


def get_pool(pool: str) -> HttpCall[fleet.PoolView]:
    return get_request(build_path("pools", pool), fleet.PoolView)


def set_pool_policy(
    pool: str, *, box: str = "any", network: str = "none", preempt: bool | None = None
) -> HttpCall[fleet.PoolView]:
    """`preempt` is left out where it is None: a service of an earlier version does not know it."""
    wanted = {"box": box, "network": network, "preempt": preempt}
    return _send_json("PUT", build_path("pools", pool), fleet.PoolView, wanted)


def get_own_quota() -> HttpCall[quotas.QuotaList]:
    return get_request("/v1/quota", quotas.QuotaList)


def get_quota(tenant: str, token: str | None = None) -> HttpCall[quotas.QuotaView]:
    return get_request(build_path("quotas", tenant), quotas.QuotaView, token=token)


def set_quota(tenant: str, limits: Mapping[str, float | None], token: str | None = None) -> HttpCall[quotas.QuotaView]:
    """`limits` by their names; those that are left out are not limited."""
    return HttpCall(
        method="PUT",
        path=build_path("quotas", tenant),
        kind=quotas.QuotaView,
        content=json.dumps(dict(limits)).encode(),
        params={"token": token} if token else {},
        headers=_JSON,
        repeat=True,
    )


def remove_quota(tenant: str, token: str | None = None) -> HttpCall[None]:
    return HttpCall(
        method="DELETE",
        path=build_path("quotas", tenant),
        kind=NoneType,
        params={"token": token} if token else {},
        repeat=True,
    )


def explain_job(job: str) -> HttpCall[scheduling.JobExplanation]:
    return get_request(build_path("jobs", job, "explain"), scheduling.JobExplanation)


def list_shares() -> HttpCall[scheduling.ShareList]:
    return get_request("/v1/shares", scheduling.ShareList)


def get_share(tenant: str) -> HttpCall[scheduling.ShareView]:
    return get_request(build_path("shares", tenant), scheduling.ShareView)


def set_share(tenant: str, weight: float) -> HttpCall[scheduling.ShareView]:
    return _send_json("PUT", build_path("shares", tenant), scheduling.ShareView, {"weight": weight})


def issue_sign_in_code() -> HttpCall[responses.SignInCode]:
    return HttpCall(method="POST", path="/v1/sign-in/code", kind=responses.SignInCode)


def list_nodes() -> HttpCall[fleet.NodeList]:
    return get_request("/v1/nodes", fleet.NodeList)


def get_device_history(
    device: str, *, limit: int | None = None, cursor: str | None = None
) -> HttpCall[fleet.DeviceHistory]:
    path = build_path("devices", device, "history")
    return get_request(path, fleet.DeviceHistory, limit=limit, cursor=cursor)


def list_device_use(*, hours: float | None = None) -> HttpCall[fleet.DeviceUseList]:
    """Who had which device in the last `hours`."""
    return get_request("/v1/devices/use", fleet.DeviceUseList, hours=hours)


def drain_node(node: str, *, deadline_seconds: float | None = None) -> HttpCall[fleet.NodeView]:
    body = b"" if deadline_seconds is None else json.dumps({"deadline_seconds": deadline_seconds}).encode()
    path = build_path("nodes", node, "drain")
    return HttpCall(method="POST", path=path, kind=fleet.NodeView, content=body, headers=_JSON, repeat=True)


def undrain_node(node: str) -> HttpCall[fleet.NodeView]:
    return HttpCall(method="DELETE", path=build_path("nodes", node, "drain"), kind=fleet.NodeView, repeat=True)


def quarantine_device(node: str, device: int, reason: str) -> HttpCall[fleet.NodeView]:
    path = build_path("nodes", node, "devices", str(device), "quarantine")
    return _send_json("POST", path, fleet.NodeView, {"reason": reason})


def unquarantine_device(node: str, device: int) -> HttpCall[fleet.NodeView]:
    path = build_path("nodes", node, "devices", str(device), "quarantine")
    return HttpCall(method="DELETE", path=path, kind=fleet.NodeView, repeat=True)


def end_block(pool: str, block: str) -> HttpCall[None]:
    return HttpCall(method="DELETE", path=build_path("pools", pool, "blocks", block), kind=NoneType, repeat=True)


def forget_node(node: str) -> HttpCall[None]:
    return HttpCall(method="DELETE", path=build_path("nodes", node), kind=NoneType)


def list_tokens() -> HttpCall[responses.TokenList]:
    return get_request("/v1/tokens", responses.TokenList)


def create_token(
    name: str,
    *,
    scopes: Sequence[str],
    tenant: str | None = None,
    expires_in_seconds: int | None = None,
    node: str | None = None,
) -> HttpCall[responses.NewToken]:
    """Not repeated: that would make two."""
    fields = {
        "name": name,
        "scopes": list(scopes),
        "tenant": tenant,
        "node": node,
        "expires_in_seconds": expires_in_seconds,
    }
    return _send_json("POST", "/v1/tokens", responses.NewToken, fields, repeat=False)


def revoke_token(token: str) -> HttpCall[None]:
    return HttpCall(method="DELETE", path=build_path("tokens", token), kind=NoneType)


def list_secrets() -> HttpCall[responses.SecretList]:
    return get_request("/v1/secrets", responses.SecretList)


def get_secret(name: str) -> HttpCall[responses.SecretView]:
    return get_request(build_path("secrets", name), responses.SecretView)


def put_secret(name: str, value: str) -> HttpCall[responses.SecretView]:
    return _send_json("PUT", build_path("secrets", name), responses.SecretView, {"value": value})


def delete_secret(name: str) -> HttpCall[None]:
    return HttpCall(method="DELETE", path=build_path("secrets", name), kind=NoneType)


def read_audit(**chosen: Any) -> HttpCall[audit.AuditPage]:
    """One page, the newest entries first. Chosen: action (several with commas), tenant, token, since and until (times),
    order, limit, cursor."""
    times = {name: value.isoformat() for name, value in chosen.items() if isinstance(value, datetime)}
    return get_request("/v1/audit", audit.AuditPage, **(chosen | times))


def list_webhooks() -> HttpCall[webhooks.WebhookList]:
    return get_request("/v1/webhooks", webhooks.WebhookList)


def create_webhook(
    url: str | None, *, events: Sequence[str], form: str, **fields: Any
) -> HttpCall[webhooks.NewWebhook]:
    """`fields`: name, and what the format needs. Not repeated: that would make two."""
    given = {"url": url, "events": list(events), "format": form} | fields
    return _send_json("POST", "/v1/webhooks", webhooks.NewWebhook, given, repeat=False)


def show_webhook(webhook: str) -> HttpCall[webhooks.WebhookView]:
    return get_request(build_path("webhooks", webhook), webhooks.WebhookView)


def change_webhook(webhook: str, **fields: Any) -> HttpCall[webhooks.WebhookView]:
    """`fields`: what is to change; None stands for what stays."""
    return _send_json("PATCH", build_path("webhooks", webhook), webhooks.WebhookView, fields)


def rotate_webhook(webhook: str, *, overlap_seconds: int | None) -> HttpCall[webhooks.NewWebhook]:
    """Not repeated: the first secret would be replaced before anybody has seen it."""
    body = b"" if overlap_seconds is None else json.dumps({"overlap_seconds": overlap_seconds}).encode()
    path = build_path("webhooks", webhook, "rotate")
    return HttpCall(method="POST", path=path, kind=webhooks.NewWebhook, content=body, headers=_JSON)


def delete_webhook(webhook: str) -> HttpCall[None]:
    return HttpCall(method="DELETE", path=build_path("webhooks", webhook), kind=NoneType)


def test_webhook(webhook: str) -> HttpCall[webhooks.PostedDelivery]:
    return HttpCall(method="POST", path=build_path("webhooks", webhook, "test"), kind=webhooks.PostedDelivery)


def list_deliveries(webhook: str, *, state: str, cursor: str, limit: int) -> HttpCall[webhooks.DeliveryList]:
    path = build_path("webhooks", webhook, "deliveries")
    return get_request(path, webhooks.DeliveryList, state=state, cursor=cursor, limit=limit)


def redeliver(webhook: str, delivery: str) -> HttpCall[webhooks.PostedDelivery]:
    path = build_path("webhooks", webhook, "deliveries", quote(delivery, safe=""), "redeliver")
    return HttpCall(method="POST", path=path, kind=webhooks.PostedDelivery, repeat=True)


def check_readiness() -> HttpCall[responses.Readiness]:
    return replace(get_request("/readyz", responses.Readiness), read_seconds=3.0)


def get_request(path: str, kind: Any, **params: Any) -> HttpCall[Any]:
    return HttpCall(method="GET", path=path, kind=kind, params=params, repeat=True)


def _send_json(method: str, path: str, kind: Any, fields: Mapping[str, Any], *, repeat: bool = True) -> HttpCall[Any]:
    """A call with a body of JSON; fields that are None are left out of it."""
    body = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
    return HttpCall(method=method, path=path, kind=kind, content=body, headers=_JSON, repeat=repeat)


def build_path(collection: str, name: str, *rest: str) -> str:
    if not name:
        raise InvalidRequest(f"an empty id names none of the {collection}")
    return "/".join(["/v1", collection, quote(name, safe=""), *rest])
