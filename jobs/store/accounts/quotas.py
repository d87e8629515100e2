"""Quotas: set by the operator, refused or waited for by the Lua functions, and read with what is used."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from jobs.model.quota import Quota
from jobs.store.call import Call, call_function, ignore_reply
from shardyard.contract.errors import OverQuota, QuotaExceeded

#: When a client may ask again that was refused for want of room: a job has to end first, or to be deleted.
RETRY_SECONDS = 30
_MS_PER_HOUR = 3_600_000


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """What a tenant, or (`token`) one of its tokens, may use, and uses; None: that is not counted, having no quota.
    `hours_free_at` is when the device-hours are below their limit again, in milliseconds since the epoch, if nothing
    more is used; None while they are."""

    tenant: str
    token: str | None
    quota: Quota | None
    used: dict[str, float | None]
    hours_free_at: int | None


def account_of(tenant: str, token: str = "") -> str:
    """How the store names who has a quota: a tenant, or one of its tokens."""
    return f"{tenant}/{token}" if token else tenant


def set_quota(tenant: str, token: str, quota: Quota | None) -> Call[None]:
    """Set the quota of a tenant, or, unless it is "", of one of its tokens; None: take it away. What is used is counted
    from the jobs that there are, so this takes Redis 0.1 s for 50,000 jobs of the tenant."""
    stored = b"" if quota is None else msgspec.json.encode(quota)
    return call_function("set_quota", ignore_reply, account=account_of(tenant, token), quota=stored)


def recount_quotas() -> Call[int]:
    """Count anew what every tenant and token with a quota uses; how many there are."""
    return call_function("recount_quotas", int)


def list_file_quotas() -> Call[tuple[str, ...]]:
    """The tenants whose quota limits the bytes of files that their jobs keep."""
    return call_function("list_file_quotas", lambda reply: tuple(tenant.decode() for tenant in reply))


def note_file_bytes(tenant: str, size: int) -> Call[None]:
    """Note how many bytes the files of a tenant's jobs have now."""
    return call_function("note_file_bytes", ignore_reply, tenant=tenant, bytes=size)


def read_quotas(tenant: str, token: str = "") -> Call[tuple[QuotaUsage, ...]]:
    """What a tenant may use and uses, and, unless it is "", one of its tokens."""

    def decode(reply: Sequence[Sequence[Any]]) -> tuple[QuotaUsage, ...]:
        return tuple(_read_usage(*row) for row in reply)

    return call_function("read_quotas", decode, tenant=tenant, token=token)


def _read_usage(account: bytes, stored: bytes, *numbers: int) -> QuotaUsage:
    tenant, _, token = account.decode().partition("/")
    jobs, running, devices, specs, bundles, files, spent, free_at = numbers
    used = {
        "jobs": jobs,
        "running": running,
        "devices": devices,
        "device_hours": spent if spent < 0 else spent / _MS_PER_HOUR,
        "spec_bytes": specs,
        "bundle_bytes": bundles,
        "file_bytes": files,
    }
    quota = msgspec.json.decode(stored, type=Quota) if stored else None
    counted = {name: None if value < 0 else value for name, value in used.items()}
    return QuotaUsage(tenant, token or None, quota, counted, free_at or None)


def raise_over_quota(detail: Sequence[str]) -> None:
    """Raise what the function `submit` has said.

    Raises:
        OverQuota: the job could never run.
        QuotaExceeded: there is no room now.
    """
    account, limit, used, allowed, never = detail
    whose = "this token" if "/" in account else "the tenant"
    words = _LIMIT_WORDS[limit]
    if never:
        raise OverQuota(f"{whose} may have {allowed} {words}, and this job needs more; ask the operator for more")
    raise QuotaExceeded(
        f"{whose} uses {used} of the {allowed} {words} that it may have; {_FREED_BY[limit]}, or ask the operator",
        retry_after=RETRY_SECONDS,
    )


_LIMIT_WORDS = {
    "jobs": "jobs that have not ended",
    "running": "running jobs",
    "devices": "devices at a time",
    "device_hours": "device-hours",
    "spec_bytes": "bytes of stored specs",
    "file_bytes": "bytes of files of jobs",
}
_FREED_BY = {
    "jobs": "there is room when a job ends; wait, or cancel one",
    "spec_bytes": "there is room when a finished job is archived; delete finished jobs that you do not need",
    "file_bytes": "there is room a minute after jobs are deleted; delete finished jobs that you do not need",
}
