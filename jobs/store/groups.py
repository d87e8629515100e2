"""Groups of jobs: those of a comparison or a sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from jobs.model.records import ROW_FIELDS, JobRow
from jobs.model.spec import JobSpec
from jobs.model.state import JobState
from jobs.model.trace_context import JobTrace
from jobs.protocol.names import split_ref
from jobs.store.call import Call, Word, call_function, ignore_reply, read_hash
from jobs.store.jobs import IDEMPOTENCY_SECONDS, raise_if_refused, spec_arguments
from shardyard.contract.errors import IdempotencyConflict, NotFound

GroupKind = Literal["comparison", "sweep"]
#: Jobs of one call, and of one group.
MAX_CHILDREN, MAX_GROUP_JOBS = 200, 1000
#: Groups of one page.
MAX_LISTED_GROUPS = 50
#: Fields of a job of a group, as the functions take them (CHILD_FIELDS in `submits.lua`), beside its number and its id.
_SPEC_FIELDS = ("pool", "devices", "nodes", "priority", "name", "strategy", "labels", "spec", "max_retries", "bundle")
_VALUES = b"values:"
_MORE_FIELDS = ("wall", "start_after", "depends_on")


@dataclass(frozen=True, slots=True)
class NewChild:
    """A job of a group that is to be stored. Its number is its place in the group, from 0."""

    number: int
    job: str
    spec: JobSpec
    trace: JobTrace


@dataclass(frozen=True, slots=True)
class NewGroup:
    """A group that is to be stored. `definition` is what its service knows of it. `planned`: how many jobs it will
    have, where it gets more than it is stored with."""

    id: str
    kind: GroupKind
    name: str
    labels: Mapping[str, str]
    definition: Mapping[str, Any]
    max_concurrent: int
    token: str = ""
    planned: int = 0


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """`is_open`: it will get more jobs. `values` are those of jobs that it has got, by their numbers; `note` says why
    it gets none, though more were planned."""

    id: str
    kind: str
    name: str
    labels: dict[str, str]
    definition: dict[str, Any]
    max_concurrent: int
    token: str
    created: int  # microseconds since the epoch
    cancelled: bool
    is_open: bool = False
    note: str = ""
    values: Mapping[int, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Child:
    """A job of a group; without a row it is archived or deleted."""

    number: int
    job: str
    row: JobRow | None


@dataclass(frozen=True, slots=True)
class GroupView:
    record: GroupRecord
    children: tuple[Child, ...]  # by their numbers


@dataclass(frozen=True, slots=True)
class CountedGroup:
    """A group with how many of its jobs, as far as they are not archived, are in each state."""

    record: GroupRecord
    counts: dict[JobState, int]


@dataclass(frozen=True, slots=True)
class GroupPage:
    groups: tuple[CountedGroup, ...]
    next_id: str | None  # pass it as `after` for the next page; None at the end
    total: int  # of all pages


@dataclass(frozen=True, slots=True)
class SubmittedGroup:
    group: str
    created: bool  # False: the idempotency key was used before, for the same body


def submit_group(
    tenant: str, group: NewGroup, children: Sequence[NewChild], *, idempotency_key: str = "", digest: str = ""
) -> Call[SubmittedGroup]:
    """Store a group and all of its jobs, at most `MAX_CHILDREN`, of which `max_concurrent` may have devices at a time.

    Raises (on execution):
        IdempotencyConflict: the key was used for another body.
        as `store.submit` does: a job is refused, and with it all.
    """

    def decode(reply: Sequence[bytes]) -> SubmittedGroup:
        _raise_if_refused(reply, children)
        status, detail = reply[0].decode(), reply[1].decode()
        if status == "conflict":
            message = f"this Idempotency-Key was used for {group.kind} {detail} with another body; send a new key"
            raise IdempotencyConflict(message)
        # The repeat of a call whose reply was lost is answered as that was.
        return SubmittedGroup(group.id if status == "created" else detail, status == "created" or detail == group.id)

    return call_function(
        "submit_group",
        decode,
        *_encode_children(children),
        tenant=tenant,
        group=group.id,
        kind=group.kind,
        name=group.name,
        labels=msgspec.json.encode(group.labels),
        definition=msgspec.json.encode(group.definition),
        max_concurrent=group.max_concurrent,
        planned=group.planned,
        idem=idempotency_key,
        digest=digest,
        remembered_seconds=IDEMPOTENCY_SECONDS,
        token=group.token,
    )


def extend_group(
    tenant: str, group: str, children: Sequence[NewChild], values: Mapping[int, Any] | None = None
) -> Call[bool]:
    """Store more jobs of a group, and what each was made with by its number; false where it is cancelled, or gone. Jobs
    whose numbers are there are left as they are. With as many jobs as were planned it is not open any more. Raises as
    `store.submit` does, on execution."""

    def decode(reply: Sequence[bytes]) -> bool:
        _raise_if_refused(reply, children)
        return reply[0] == b"ok"

    # Texts within the text: Lua would round numbers.
    texts = {str(number): msgspec.json.encode(value).decode() for number, value in (values or {}).items()}
    return call_function(
        "extend_group",
        decode,
        *_encode_children(children),
        tenant=tenant,
        group=group,
        values=msgspec.json.encode(texts),
    )


def close_group(tenant: str, group: str, note: str) -> Call[None]:
    """An open group gets no more jobs; `note` says why."""
    return call_function("close_group", ignore_reply, tenant=tenant, group=group, note=note)


def list_searches() -> Call[list[tuple[str, str]]]:
    """The tenants and ids of groups that are open."""
    return call_function("list_searches", lambda reply: sorted(map(split_ref, reply)))


def _encode_children(children: Sequence[NewChild]) -> list[Word]:
    words: list[Word] = []
    for child in children:
        told = spec_arguments(child.spec)
        words += [child.number, child.job, *(told[name] for name in (*_SPEC_FIELDS, *_MORE_FIELDS))]
        words += [child.trace.traceparent, child.trace.caller_span]
    return words


def _raise_if_refused(reply: Sequence[bytes], children: Sequence[NewChild]) -> None:
    if reply[0] != b"refused":
        return
    number, status, *detail = (part.decode() for part in reply[1:])
    specs = {child.number: child.spec for child in children}
    raise_if_refused(status, detail, specs.get(int(number), children[0].spec))


def cancel_group(tenant: str, group: str, kind: GroupKind) -> Call[None]:
    """Cancel all jobs of a group that have not ended; it gets no more. Raises NotFound on execution."""

    def decode(reply: Sequence[Any]) -> None:
        if reply[0] == b"missing":
            raise _not_found(group, kind)

    return call_function("cancel_group", decode, tenant=tenant, group=group, kind=kind)


def read_group(tenant: str, group: str, kind: GroupKind) -> Call[GroupView]:
    """Raises NotFound on execution."""

    def decode(reply: Sequence[Any]) -> GroupView:
        if not reply:
            raise _not_found(group, kind)
        fields, *children = reply
        found = sorted((_read_child(tenant, *child) for child in children), key=lambda child: child.number)
        return GroupView(_read_record(group, fields), tuple(found))

    return call_function("read_group", decode, *ROW_FIELDS, tenant=tenant, group=group, kind=kind)


def _not_found(group: str, kind: GroupKind) -> NotFound:
    return NotFound(f"there is no {kind} {group!r}")


def _read_child(tenant: str, number: bytes, job: bytes, *values: bytes | None) -> Child:
    fields = {name: value for name, value in zip(ROW_FIELDS, values, strict=False) if value is not None}
    return Child(int(number), job.decode(), JobRow.from_fields(tenant, job.decode(), fields) if fields else None)


def _read_record(group: str, reply: Any) -> GroupRecord:
    fields = read_hash(reply)
    return GroupRecord(
        id=group,
        kind=fields[b"kind"].decode(),
        name=fields[b"name"].decode(),
        labels=msgspec.json.decode(fields[b"labels"], type=dict[str, str]),
        definition=msgspec.json.decode(fields[b"definition"], type=dict[str, Any]),
        max_concurrent=int(fields[b"max_concurrent"]),
        token=fields[b"token"].decode(),
        created=int(fields[b"created"]),
        cancelled=fields.get(b"cancelled") == b"1",
        is_open=b"open" in fields,
        note=fields.get(b"note", b"").decode(),
        values={
            int(name.removeprefix(_VALUES)): msgspec.json.decode(value)
            for name, value in fields.items()
            if name.startswith(_VALUES)
        },
    )


def list_groups(tenant: str, kind: GroupKind, *, after: str = "", limit: int = MAX_LISTED_GROUPS) -> Call[GroupPage]:
    """A page of groups, newest first."""

    def decode(reply: Sequence[Any]) -> GroupPage:
        next_id, total, *groups = reply
        found = tuple(
            CountedGroup(
                _read_record(group.decode(), fields),
                {JobState(state.decode()): count for state, count in zip(counts[::2], counts[1::2], strict=True)},
            )
            for group, fields, counts in groups
        )
        return GroupPage(found, next_id.decode() or None, total)

    return call_function("list_groups", decode, tenant=tenant, kind=kind, after=after, limit=limit)
