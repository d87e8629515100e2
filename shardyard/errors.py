"""What a client of the service may raise: the tree of `shardyard.contract.errors`, and `JobFailed`. Each class has a
stable `code`.
"""

from typing import ClassVar

from shardyard.contract.errors import (
    AmbiguousReference,
    BadBundle,
    BodyTooLarge,
    BundleNeeded,
    BundleQuota,
    Conflict,
    FieldError,
    FilesInBucket,
    Forbidden,
    IdempotencyConflict,
    InvalidRequest,
    InvalidSpec,
    JobFinished,
    JobNotFinished,
    JobNotRunning,
    MalformedCursor,
    MalformedJson,
    NoAccess,
    NodeInUse,
    NotComparable,
    NotFound,
    NotSupported,
    OverQuota,
    PreconditionFailed,
    ProfileRunning,
    QuotaExceeded,
    RateLimited,
    SecretKeyUnusable,
    SecretQuota,
    ShardyardError,
    SignInFailed,
    StorageLow,
    StorageUnavailable,
    StoreFull,
    TooLargeForPool,
    TooManyReads,
    Unauthenticated,
    Unavailable,
    UnboxedNodes,
    UnknownBundle,
    UnknownPool,
    UnknownSecret,
    UnreadableSpec,
    WebhookQuota,
)
from shardyard.contract.responses import JobStatus, JobSummary
from shardyard.formatting import short_id

__all__ = [
    "ShardyardError",
    "InvalidRequest",
    "InvalidSpec",
    "NotSupported",
    "UnknownPool",
    "TooLargeForPool",
    "UnknownBundle",
    "UnknownSecret",
    "BadBundle",
    "MalformedCursor",
    "MalformedJson",
    "BodyTooLarge",
    "Unauthenticated",
    "SignInFailed",
    "FilesInBucket",
    "Forbidden",
    "NoAccess",
    "NotComparable",
    "NotFound",
    "Conflict",
    "AmbiguousReference",
    "IdempotencyConflict",
    "JobFinished",
    "JobNotFinished",
    "BundleNeeded",
    "JobNotRunning",
    "ProfileRunning",
    "BundleQuota",
    "SecretQuota",
    "WebhookQuota",
    "OverQuota",
    "PreconditionFailed",
    "QuotaExceeded",
    "RateLimited",
    "TooManyReads",
    "NodeInUse",
    "UnboxedNodes",
    "UnreadableSpec",
    "SecretKeyUnusable",
    "StorageLow",
    "StorageUnavailable",
    "StoreFull",
    "Unavailable",
    "FieldError",
    "JobFailed",
]


class JobFailed(ShardyardError):
    """A job that was waited for has failed, or was cancelled. The message has its error, with the traceback, and
    `status` its last status."""

    code: ClassVar[str] = "job_failed"

    def __init__(self, status: JobSummary) -> None:
        how = "was cancelled" if status.state == "cancelled" else "failed"
        said = [f"job {status.name} ({short_id(status.id)}) {how}: {status.reason.message}".rstrip(": ")]
        error = (status.error or {}) if isinstance(status, JobStatus) else {}
        traceback = str(error.get("traceback") or "").rstrip()
        if traceback:
            said += ["", traceback]
        elif error.get("message") and str(error["message"]) not in said[0]:
            said.append(str(error["message"]))
        if error.get("advice"):
            said += ["", str(error["advice"])]
        super().__init__("\n".join(said))
        self.status = status

    def __reduce__(self) -> "tuple[type[JobFailed], tuple[JobSummary]]":
        return JobFailed, (self.status,)  # processes of a pool send it to each other
