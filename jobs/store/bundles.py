"""Calls on uploaded code: a tenant's bundles, and those that are no longer needed."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.protocol.names import bundle_ref
from jobs.store.call import Call, call_function, read_hash
from shardyard.contract.errors import BundleNeeded, BundleQuota, FieldError, NotFound, UnknownBundle

#: Jobs that a refusal to delete a bundle names, and the newest of a tenant that are searched for them.
MAX_NEEDING_JOBS, MAX_SCANNED_JOBS = 10, 1_000


@dataclass(frozen=True, slots=True)
class BundleRecord:
    """A bundle of a tenant; sizes in bytes, times in microseconds since the epoch."""

    id: str
    nonce: str  # names its file: layout.bundle_file
    bytes: int
    files: int
    unpacked: int
    created: int
    used: int
    jobs: int  # that need it, also those that have ended and could be submitted again


@dataclass(frozen=True, slots=True)
class BundleUpload:
    created: bool
    nonce: str  # of the file that is kept: another one than the caller's when that came second


def put_bundle(
    tenant: str, bundle: str, nonce: str, *, size: int, files: int, unpacked: int, missing_nonce: str = "", quota: int
) -> Call[BundleUpload]:
    """Record an upload whose file is in place. `missing_nonce` is that of a record without its file.
    `quota` is how many bytes all bundles of the tenant may have.

    Raises (on execution):
        BundleQuota: they would have more.
    """

    def decode(reply: Sequence[bytes]) -> BundleUpload:
        status, *detail = (part.decode() for part in reply)
        if status == "full":
            raise BundleQuota(
                f"your bundles have {detail[0]} bytes, and with this one of {size} they would have more than "
                f"{detail[1]}; "
                "delete finished jobs that you do not need; a bundle that no job needs is removed after a while"
            )
        stored_nonce = detail[0] if detail else nonce
        # The repeat of a call whose reply was lost is answered as that was.
        return BundleUpload(stored_nonce == nonce, stored_nonce)

    return call_function(
        "put_bundle",
        decode,
        ref=bundle_ref(tenant, bundle),
        nonce=nonce,
        bytes=size,
        files=files,
        unpacked=unpacked,
        gone_nonce=missing_nonce,
        quota=quota,
    )


def read_bundle(tenant: str, bundle: str) -> Call[BundleRecord | None]:
    """A bundle, which counts as used now; None when the tenant has no such one."""

    def decode(reply: Sequence[bytes]) -> BundleRecord | None:
        if not reply:
            return None
        fields = {name.decode(): value.decode() for name, value in read_hash(reply).items()}
        nonce = fields.pop("nonce")
        return BundleRecord(id=bundle, nonce=nonce, **{name: int(value) for name, value in fields.items()})

    return call_function("read_bundle", decode, ref=bundle_ref(tenant, bundle))


def delete_bundle(tenant: str, bundle: str) -> Call[str]:
    """Forget a bundle that no job needs; the nonce of its file, which the caller deletes.

    Raises (on execution):
        NotFound: the tenant has no such bundle.
        BundleNeeded: a job needs it.
    """

    def decode(reply: Sequence[bytes]) -> str:
        status, *detail = (part.decode() for part in reply)
        if status == "missing":
            raise NotFound(f"there is no bundle {bundle}")
        if status == "needed":
            raise _bundle_needed(int(detail[0]), detail[1:])
        return detail[0]

    return call_function(
        "delete_bundle",
        decode,
        ref=bundle_ref(tenant, bundle),
        max_listed=MAX_NEEDING_JOBS,
        max_scanned=MAX_SCANNED_JOBS,
    )


def _bundle_needed(jobs: int, listed: Sequence[str]) -> BundleNeeded:
    needing = "1 job needs" if jobs == 1 else f"{jobs} jobs need"
    shown = f": {', '.join(listed)}" + (" and others" if jobs > len(listed) else "") if listed else ""
    return BundleNeeded(f"{needing} this bundle{shown}; a job needs it until it is deleted or archived")


def unknown_bundle(bundle: str | None) -> UnknownBundle:
    problem = "there is no such bundle; upload it with POST /v1/bundles, and submit again"
    return UnknownBundle(f"there is no bundle {bundle}", fields=(FieldError("program.bundle", problem),))


@dataclass(frozen=True, slots=True)
class StoredBundle:
    """Which file a bundle has, or had."""

    tenant: str
    id: str
    nonce: str


def collect_bundles(idle_seconds: float, limit: int = 100) -> Call[tuple[StoredBundle, ...]]:
    """Remove bundles that no job needs and that were not used for this long; the caller deletes their files."""

    def decode(reply: Sequence[Sequence[bytes]]) -> tuple[StoredBundle, ...]:
        rows = ((*ref.decode().split("/"), nonce.decode()) for ref, nonce in reply)
        return tuple(StoredBundle(tenant, f"sha256:{digest}", nonce) for tenant, digest, nonce in rows)

    return call_function("collect_bundles", decode, idle_us=int(idle_seconds * 1e6), limit=limit)


def are_current(stored: Sequence[StoredBundle]) -> Call[tuple[bool, ...]]:
    """Whether each of these files is the one that its bundle has."""

    def decode(reply: Sequence[bytes]) -> tuple[bool, ...]:
        return tuple(nonce.decode() == one.nonce for nonce, one in zip(reply, stored, strict=True))

    return call_function("read_bundle_nonces", decode, *(bundle_ref(one.tenant, one.id) for one in stored))
