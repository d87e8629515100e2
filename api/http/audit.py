"""The audit: which requests have entries in it, and what a service adds to the entry of its request.

Every route that changes something or hands out a file has its action in a table here; the entry is written by
`api.http.audit_middleware`. A service may say more about what it did, and name the action better.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from api.http.auth import Principal

_log = structlog.get_logger("shardyard.audit")

#: Of a request whose token or session is not valid, or that lacks a scope.
TOKEN_REFUSED: Final = "token_refused"  # noqa: S105  (a name, no password)
SCOPE_REFUSED: Final = "scope_refused"
ENDED_SESSION: Final = "signed_out"

#: Requests that change something, by method and path.
CHANGES: Final[Mapping[tuple[str, str], str]] = {
    ("POST", "/v1/jobs"): "job_submitted",
    ("POST", "/v1/jobs/{job}/resubmit"): "job_submitted",
    ("POST", "/v1/jobs/{job}/cancel"): "job_cancelled",
    ("POST", "/v1/jobs/{job}/suspend"): "job_suspended",
    ("POST", "/v1/jobs/{job}/resume"): "job_resumed",
    ("POST", "/v1/jobs/cancel"): "jobs_cancelled",
    ("DELETE", "/v1/jobs/{job}"): "job_deleted",
    ("POST", "/v1/jobs/{job}/profile"): "profile_requested",
    ("POST", "/v1/comparisons"): "comparison_submitted",
    ("POST", "/v1/comparisons/{comparison}/cancel"): "comparison_cancelled",
    ("POST", "/v1/sweeps"): "sweep_submitted",
    ("POST", "/v1/sweeps/{sweep}/cancel"): "sweep_cancelled",
    ("POST", "/v1/bundles"): "bundle_uploaded",
    ("DELETE", "/v1/bundles/{bundle}"): "bundle_deleted",
    ("PUT", "/v1/secrets/{secret}"): "secret_stored",
    ("DELETE", "/v1/secrets/{secret}"): "secret_deleted",
    ("POST", "/v1/tokens"): "token_created",
    ("DELETE", "/v1/tokens/{token}"): "token_revoked",
    ("PUT", "/v1/shares/{tenant}"): "share_set",
    ("PUT", "/v1/quotas/{tenant}"): "quota_set",
    ("DELETE", "/v1/quotas/{tenant}"): "quota_removed",
    ("POST", "/v1/webhooks"): "webhook_created",
    ("PATCH", "/v1/webhooks/{webhook}"): "webhook_changed",
    ("POST", "/v1/webhooks/{webhook}/rotate"): "webhook_secret_rotated",
    ("DELETE", "/v1/webhooks/{webhook}"): "webhook_deleted",
    ("POST", "/v1/webhooks/{webhook}/test"): "webhook_tested",
    ("POST", "/v1/webhooks/{webhook}/deliveries/{delivery}/redeliver"): "webhook_redelivered",
    ("POST", "/v1/sign-in"): "signed_in",
    ("POST", "/v1/sign-in/code"): "sign_in_code_issued",
    ("GET", "/v1/sign-in/oidc/callback"): "signed_in",
    ("POST", "/v1/sign-in/device/token"): "signed_in",
    ("POST", "/v1/sign-out"): ENDED_SESSION,
    ("PUT", "/v1/pools/{pool}"): "pool_policy_set",
    ("POST", "/v1/nodes/{node}/drain"): "node_drained",
    ("DELETE", "/v1/nodes/{node}/drain"): "node_undrained",
    ("POST", "/v1/nodes/{node}/devices/{device}/quarantine"): "device_quarantined",
    ("DELETE", "/v1/nodes/{node}/devices/{device}/quarantine"): "device_unquarantined",
    ("DELETE", "/v1/nodes/{node}"): "node_forgotten",
    ("DELETE", "/v1/pools/{pool}/blocks/{block}"): "block_ended",
    ("POST", "/v1/node/join"): "node_joined",
}
#: Requests that hand out what jobs have made, or the audit itself.
DOWNLOADS: Final[Mapping[tuple[str, str], str]] = {
    ("GET", "/v1/jobs/{job}/artifacts/{path:path}"): "file_downloaded",
    ("GET", "/v1/audit"): "audit_read",
}
#: Requests with another method than GET that change nothing.
UNCHANGING: Final = frozenset(
    {
        ("POST", "/v1/plan"),
        ("POST", "/v1/jobs/{job}/gate"),
        ("POST", "/v1/sign-in/device"),
        ("POST", "/v1/node/join/reach"),
    }
)
#: Requests of nodes, many in a second, that bring or fetch what belongs to attempts which they have: supervisors that
#: share the directory do so without an entry as well. What is refused has one.
BROUGHT: Final = frozenset(
    (method, "/v1/node/files/{path:path}") for method in ("GET", "PATCH", "PUT", "POST", "DELETE")
)


@dataclass(slots=True)
class AuditNotes:
    """What the services say of one request: who it was, where no token was sent with it, and each action with its
    details."""

    who: Principal | None = None
    actions: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


#: Those of the request that runs now.
current_notes: ContextVar[AuditNotes | None] = ContextVar("current_notes", default=None)


def note_refused(who: Principal) -> None:
    """Say whom a request was refused that has no token, for its entry."""
    notes = current_notes.get()
    if notes is not None:
        notes.who = who


def log_audit_event(who: Principal, event: str, **fields: object) -> None:
    """Say what a request has done: in its entry, and, where that is at DEBUG, in the service's own log."""
    notes = current_notes.get()
    if notes is not None:
        notes.who = who
        notes.actions.append((event, fields))
    _log.debug(event, **fields, token=who.token, tenant=who.tenant)
