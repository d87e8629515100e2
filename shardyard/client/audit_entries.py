"""Reads the audit page by page, and follows it."""

from datetime import UTC, datetime
from typing import Any, Final

from shardyard.client import endpoints
from shardyard.client.operations import RetryBudget, call_endpoint
from shardyard.client.transport import Items, PauseStep, YieldStep
from shardyard.contract.audit import AuditEntry
from shardyard.contract.errors import Unavailable

PAGE_ENTRIES: Final = 1000
POLL_SECONDS: Final = 2.0


def read_audit(
    *, newest: int = 50, since: datetime | None = None, follow: bool = False, **filters: Any
) -> Items[AuditEntry]:
    """Entries in the order in which they were written: all since a time, or the newest so many; with `follow`, then
    those that come.

    Raises:
        Forbidden: the token is not an administrator's, or the entries are another tenant's.
        Unavailable: the service was away; with `follow`, for longer than it is waited for.
    """
    cursor = ""
    if since is None:
        since = datetime.now(UTC)
        found: list[AuditEntry] = []
        while newest > len(found):
            limit = min(newest - len(found), PAGE_ENTRIES)
            page = yield from call_endpoint(endpoints.read_audit(limit=limit, cursor=cursor, **filters))
            found += page.entries
            if page.next is None:
                break
            cursor = page.next
        for entry in reversed(found):
            yield YieldStep(entry)
        if not follow:
            return
        cursor = found[0].id if found else ""
    patience = RetryBudget()
    while True:
        try:
            page = yield from call_endpoint(
                endpoints.read_audit(order="oldest", since=since, limit=PAGE_ENTRIES, cursor=cursor, **filters)
            )
            patience.heard()
        except Unavailable as error:
            if not follow:
                raise
            yield patience.pause(error)
            continue
        for entry in page.entries:
            yield YieldStep(entry)
        cursor = page.next or (page.entries[-1].id if page.entries else cursor)
        if page.next is None:
            if not follow:
                return
            yield PauseStep(POLL_SECONDS)
