"""The shapes of the audit: one entry for each change, download, sign-in and refusal. Entries are also what the lines of
the audit's files hold, so a field that is added needs a default."""

from datetime import datetime
from typing import Any

import msgspec

from shardyard.contract.responses import Answer


class AuditEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who did what, and when. `id` begins with the time, so ids sort as entries do. `status` is the answer's: with 500
    and above, or 0 where the client left before the answer, it is not known whether the change was made. `token` of a
    `token_refused` is what the caller claimed. `session` names a browser's session without giving it away. `repeated`:
    how many more like it there were within the minute, each without an entry of its own."""

    id: str
    at: datetime
    action: str
    status: int
    method: str = ""
    path: str = ""
    tenant: str = ""
    token: str = ""
    token_name: str = ""
    session: str = ""
    address: str = ""
    request_id: str = ""
    details: dict[str, Any] = {}
    repeated: int = 0


class AuditPage(Answer, frozen=True):
    """`next` is null at the end; a page may have fewer entries than asked for, or none, and yet a `next`, since a
    request searches only a limited part. `total` is how many entries are known when the first page is read: all, unless
    `total_is_exact` is false, and on later pages None. `links` has `self` and, unless this is the last page, `next`."""

    entries: list[AuditEntry]
    next: str | None = None
    total: int | None = None
    total_is_exact: bool = True
    links: dict[str, str] = msgspec.field(default_factory=dict)
