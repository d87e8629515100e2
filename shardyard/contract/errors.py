"""Every error that a caller of this project may meet, as one tree.

    ShardyardError
    ├── InvalidRequest            the request itself is wrong; `fields` says where
    │   ├── InvalidSpec           the job spec breaks a rule
    │   │   └── NotSupported      a valid wish that this version refuses
    │   ├── UnknownPool           no node ever registered for that pool
    │   ├── TooLargeForPool       no node of the pool has that many devices
    │   ├── UnknownBundle         the spec names code that the tenant has not uploaded
    │   ├── UnknownSecret         the spec names a secret that the tenant does not have
    │   ├── BadBundle             an upload that is no zip, or breaks a rule on bundles
    │   ├── MalformedCursor       a cursor that this service did not make
    │   └── MalformedJson         the body is not JSON
    ├── BodyTooLarge
    ├── Unauthenticated           no token, or not one of ours
    │   └── SignInFailed          a single sign-on that was denied, took too long, or is not the caller's
    ├── Forbidden                 a token of ours that lacks the scope
    │   └── NoAccess              somebody whom the identity provider knows, and no access rule
    ├── OverQuota                 more than the tenant or the token may ever have
    ├── QuotaExceeded             all is used that the tenant or the token may use; `retry_after` says when to ask again
    ├── NotFound                  also what another tenant's id looks like
    ├── PreconditionFailed        what `If-Match` names is not as it is now
    ├── Conflict
    │   ├── AmbiguousReference    several jobs fit the words for one; `candidates` has them
    │   ├── IdempotencyConflict   same key, other body
    │   ├── JobFinished           cancel of a job that has ended
    │   ├── JobNotFinished        delete of a job that has not, or a gate
    │   ├── BundleNeeded          delete of a bundle that a job needs
    │   ├── JobNotRunning         a profile of a job that waits or has ended
    │   ├── NotComparable         a gate against a job of another shape
    │   ├── ProfileRunning        a profile of a job that is being profiled
    │   ├── BundleQuota           a tenant's bundles have no more room
    │   ├── SecretQuota           a tenant has as many secrets as it may have
    │   ├── WebhookQuota          a tenant has as many webhooks, or as much that waits for them, as it may have
    │   ├── NodeInUse             forgetting a node that is alive or holds a lease
    │   └── UnboxedNodes          a second tenant while nodes put no box around jobs
    ├── UnreadableSpec            a stored spec of another version of the service
    ├── StorageLow                a disk of the service has too little room for anything new
    ├── FormatMismatch            the keys in Redis are those of another version; no request meets it
    ├── SecretKeyUnusable         the file with the keys of secrets is missing, or another service's
    └── Unavailable               Redis does not answer; the request may be repeated
        ├── RateLimited           too many requests of the tenant or the token
        ├── TooManyReads          too many large answers of the tenant are being made
        ├── StorageUnavailable    the bucket that the service keeps its files in does not answer, or refuses
        └── StoreFull             the control Redis has no room for anything new

Each class has a stable `code`. HTTP statuses live in one table of `api.http.problems`, not here.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from shardyard.contract.responses import JobReference


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: its dotted path in the request, what is wrong, and what would be right."""

    field: str
    message: str


class ShardyardError(Exception):
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, fields: tuple[FieldError, ...] = (), retry_after: int | None = None) -> None:
        """`retry_after`: the request may be sent again after so many seconds."""
        super().__init__(message)
        self.message = message
        self.fields = fields
        self.retry_after = retry_after
        for wrong in fields:
            self.add_note(f"{wrong.field}: {wrong.message}")  # a traceback, as in a notebook, tells it too


class InvalidRequest(ShardyardError):
    code = "invalid_request"


class InvalidSpec(InvalidRequest):
    code = "invalid_spec"


class NotSupported(InvalidSpec):
    code = "not_supported"


class UnknownPool(InvalidRequest):
    code = "unknown_pool"


class TooLargeForPool(InvalidRequest):
    code = "too_large_for_pool"


class UnknownBundle(InvalidRequest):
    code = "unknown_bundle"


class UnknownSecret(InvalidRequest):
    code = "unknown_secret"


class BadBundle(InvalidRequest):
    code = "bad_bundle"


class MalformedCursor(InvalidRequest):
    code = "malformed_cursor"


class MalformedJson(InvalidRequest):
    code = "malformed_json"


class BodyTooLarge(ShardyardError):
    code = "body_too_large"


class Unauthenticated(ShardyardError):
    code = "unauthenticated"


class SignInFailed(Unauthenticated):
    code = "sign_in_failed"


class Forbidden(ShardyardError):
    code = "forbidden"


class NoAccess(Forbidden):
    code = "no_access"


class FilesInBucket(Forbidden):
    code = "files_in_bucket"


class OverQuota(ShardyardError):
    code = "over_quota"


class QuotaExceeded(ShardyardError):
    code = "quota_exceeded"


class NotFound(ShardyardError):
    code = "not_found"


class Conflict(ShardyardError):
    code = "conflict"


class AmbiguousReference(Conflict):
    code = "ambiguous_reference"

    def __init__(self, message: str, candidates: "tuple[JobReference, ...]" = ()) -> None:
        super().__init__(message)
        self.candidates = candidates


class PreconditionFailed(ShardyardError):
    code = "precondition_failed"


class IdempotencyConflict(Conflict):
    code = "idempotency_conflict"


class JobFinished(Conflict):
    code = "job_finished"


class JobNotFinished(Conflict):
    code = "job_not_finished"


class BundleNeeded(Conflict):
    code = "bundle_needed"


class JobNotRunning(Conflict):
    code = "job_not_running"


class NotComparable(Conflict):
    code = "not_comparable"


class ProfileRunning(Conflict):
    code = "profile_running"


class BundleQuota(Conflict):
    code = "bundle_quota"


class SecretQuota(Conflict):
    code = "secret_quota"


class WebhookQuota(Conflict):
    code = "webhook_quota"


class NodeInUse(Conflict):
    code = "node_in_use"


class UnboxedNodes(Conflict):
    code = "unboxed_nodes"


class UnreadableSpec(ShardyardError):
    code = "unreadable_spec"


class StorageLow(ShardyardError):
    code = "storage_low"


class FormatMismatch(ShardyardError):
    code = "format_mismatch"


class SecretKeyUnusable(ShardyardError):
    code = "secret_key_unusable"


class Unavailable(ShardyardError):
    code = "unavailable"


class RateLimited(Unavailable):
    code = "rate_limited"


class TooManyReads(Unavailable):
    code = "too_many_reads"


class StorageUnavailable(Unavailable):
    code = "storage_unavailable"


class StoreFull(Unavailable):
    code = "store_full"
