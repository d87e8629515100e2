"""The service of the audit: reads pages of it, for operators of all tenants, for other administrators of their own."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec

from api.data.file_threads import AttemptStorage
from api.http.auth import Principal
from jobs.files import audit_files
from jobs.files.audit_files import AuditQuery
from jobs.protocol.names import DEFAULT_TENANT
from shardyard.contract.errors import Forbidden, MalformedCursor
from shardyard.contract.responses import Answer


class EncodedAuditPage(Answer, frozen=True):
    """An `AuditPage` whose entries are the JSON that their lines are."""

    entries: list[msgspec.Raw]
    next: str | None
    total: int | None
    total_is_exact: bool
    links: dict[str, str] = msgspec.field(default_factory=dict)

    def as_lines(self) -> bytes:
        return b"".join(bytes(entry) + b"\n" for entry in self.entries)


class AuditService:
    def __init__(self, storage: AttemptStorage, send_unsent: Callable[[], None] = lambda: None) -> None:
        """`send_unsent` brings what this process has written to the bucket, if there is one."""
        self._storage = storage
        self._send_unsent = send_unsent
        self._directory = audit_files.audit_dir(storage.root)

    async def read_page(self, who: Principal, query: AuditQuery) -> EncodedAuditPage:
        """Entries that the caller may see and that the query is for.

        Raises:
            Forbidden: they are another tenant's, and the caller is not the operator.
            MalformedCursor: `query.after` is not one that a page ended with.
        """
        if query.after and audit_files.ID_PATTERN.fullmatch(query.after) is None:
            raise MalformedCursor("the cursor was not issued by this service; leave it out to start again")
        if who.tenant != DEFAULT_TENANT:
            if query.tenant not in ("", who.tenant):
                raise Forbidden("only operators may read the audit of another tenant")
            query = replace(query, tenant=who.tenant)
        lines, following = await self._storage.fetch_in_thread(partial(self._read_page, query))
        # A count of all would read the files of every day that the query is for.
        total = None if query.after else len(lines)
        return EncodedAuditPage([msgspec.Raw(line) for line in lines], following, total, following is None)

    def _read_page(self, query: AuditQuery) -> tuple[list[bytes], str | None]:
        bucket = self._storage.bucket
        if bucket is None:
            return audit_files.read_page(self._directory, query)
        self._send_unsent()
        return audit_files.read_page(self._directory, query, bucket.list_names, bucket.bring_rows)
