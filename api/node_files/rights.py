"""What a node's token may read and change: files of the attempts that the node has, or had recently.

    jobs/<tenant>/<job>/<attempt>/...     read and changed by the nodes of the attempt, until a while after its end
    jobs/<tenant>/<job>/checkpoints/...   read while the node holds an attempt of the job; changed while that lives
    jobs/<tenant>/<job>/<other>/artifacts/[.]checkpoints/...   read in the same time: scripts go on from these
    bundles/<tenant>/<hex>.<nonce>.zip    read while the node holds an attempt of a job that names the bundle
    .shardyard-storage                    read by every node, to know that it talks to its own service
    .node-checks/<node>/check             read and changed by the node, to see that it can; small

A node that has handed its devices back and still brings the files of an attempt holds that attempt. Nothing else
exists for a node. What Redis says is remembered for a moment; a refusal is always fresh.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, TypeVar, cast

from api.node_files.sums import Bound, bound_of_attempt, bound_of_checkpoints
from api.schemas.account_requests import TENANT_PATTERN
from jobs import store
from jobs.files.identity import NONCE_FILE
from jobs.files.paths import node_check
from jobs.model.records import AttemptRecord
from jobs.model.settings import Settings
from jobs.model.spec import RecipeProgram
from jobs.model.state import AttemptState
from jobs.store.attempts import AttemptId
from jobs.store.call import Call
from jobs.store.client import AsyncRedisStore
from jobs.store.placement import HeldAttempt, read_attempt, read_attempt_number, read_held_attempts
from jobs.support.bounded_cache import keep_newest
from shardyard.contract.errors import Forbidden, UnreadableSpec

T = TypeVar("T")

#: How long after the end of an attempt, and the time of a lease, its node may bring what it still has of it: a node
#: that was cut off for a night keeps its logs.
HAND_OVER_SECONDS = 86_400.0
CACHE_SECONDS, MAX_CACHED = 2.0, 4096
#: What a job wants does not change.
BOUND_SECONDS = 600.0
#: Of a job whose spec is of another version: the most that specs may keep, and more nodes than most jobs have.
ASSUMED_NODES, MOST_KEPT = 16, 100
_TENANT = re.compile(TENANT_PATTERN)
_JOB = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}")
_NUMBER = re.compile(r"[1-9]\d{0,8}")
_CHECKPOINT = re.compile(r"\d{12}-([1-9]\d{0,8})")
_SAVED_BY_SCRIPTS = (("artifacts", "checkpoints"), ("artifacts", ".checkpoints"))


class NodeRights:
    def __init__(self, control: AsyncRedisStore, settings: Settings) -> None:
        self._store = control
        self._settings = settings
        self._late_us = int((settings.lease_seconds + HAND_OVER_SECONDS) * 1e6)
        self._cached: OrderedDict[object, tuple[Any, float]] = OrderedDict()

    async def require_read(self, node: str, path: PurePosixPath) -> None:
        """Raises:
        Forbidden: the node may not read what lies there, or below it.
        Unavailable: the control Redis does not answer.
        """
        await self._require(node, path, self._may_read)

    async def require_write(self, node: str, path: PurePosixPath) -> None:
        """Raises:
        Forbidden: the node may not make or replace this file.
        Unavailable: the control Redis does not answer.
        """
        await self._require(node, path, self._may_write)

    async def require_removal(self, node: str, path: PurePosixPath) -> None:
        """Raises:
        Forbidden: the node may not remove what lies there, or below it.
        Unavailable: the control Redis does not answer.
        """
        await self._require(node, path, self._may_remove)

    async def read_bound(self, path: PurePosixPath) -> Bound | None:
        """How much nodes may bring where a file belongs that one may write; None where one file is all.

        Raises:
            NotFound: the job has gone.
            Unavailable: the control Redis does not answer.
        """
        parts = path.parts
        if not _is_of_job(parts, 5):
            return None
        nodes, kept = await self._read_job(parts[1], parts[2])
        directory = PurePosixPath(*parts[:4])
        if parts[3] == "checkpoints":
            return bound_of_checkpoints(self._settings, directory, nodes, kept)
        return bound_of_attempt(self._settings, directory, nodes)

    async def _read_job(self, tenant: str, job: str) -> tuple[int, int]:
        """How many nodes a job wants, and how many checkpoints it keeps; the most where the spec cannot be read."""
        key = ("bound", tenant, job)
        found, until = self._cached.get(key, (None, 0.0))
        if found is None or time.monotonic() >= until:
            try:
                view = await self._store.run(store.read_job(tenant, job))
                program = view.spec.program
                policy = program.checkpoint if isinstance(program, RecipeProgram) else None
                found = view.record.nodes, policy.keep if policy is not None else 0
            except UnreadableSpec:
                found = ASSUMED_NODES, MOST_KEPT
            self._remember(key, found, BOUND_SECONDS)
        return cast(tuple[int, int], found)

    async def choose_bundles(self, node: str, paths: list[str]) -> list[str]:
        """Of these files, the bundles that attempts of the node need now: a job that has just begun is among them.

        Raises:
            Unavailable: the control Redis does not answer.
        """
        held = await self._held(node, fresh=True)
        return [path for path in paths if any(_is_bundle_of(one, PurePosixPath(path)) for one in held)]

    async def _require(self, node: str, path: PurePosixPath, may: Callable[..., Any]) -> None:
        if await may(node, path.parts, fresh=False) or await may(node, path.parts, fresh=True):
            return
        raise Forbidden(f"node {node} has no attempt that {str(path)[:200]!r} belongs to")

    async def _may_read(self, node: str, parts: tuple[str, ...], *, fresh: bool) -> bool:
        if parts == (NONCE_FILE,) or is_check(node, parts):
            return True
        if parts[0] == "bundles":
            held = await self._held(node, fresh=fresh)
            path = PurePosixPath(*parts)
            if len(parts) == 2:
                return any(one.attempt.tenant == parts[1] for one in held)
            return any(_is_bundle_of(one, path) for one in held)
        if not _is_of_job(parts, 4):
            return False
        if _NUMBER.fullmatch(parts[3]) and await self._has_attempt(node, _attempt_of(parts), fresh=fresh):
            return True
        saved = parts[3] == "checkpoints" or parts[4:6] in _SAVED_BY_SCRIPTS
        return saved and await self._holds_job(node, parts, fresh=fresh)

    async def _may_write(self, node: str, parts: tuple[str, ...], *, fresh: bool) -> bool:
        if is_check(node, parts):
            return True
        if not _is_of_job(parts, 5):
            return False
        if _NUMBER.fullmatch(parts[3]):
            return await self._has_attempt(node, _attempt_of(parts), fresh=fresh)
        saved = _CHECKPOINT.fullmatch(parts[4]) if parts[3] == "checkpoints" and len(parts) > 5 else None
        if saved is None:
            return False
        attempt = AttemptId(parts[1], parts[2], int(saved[1]))
        return await self._has_attempt(node, attempt, fresh=fresh, alive=True)

    async def _may_remove(self, node: str, parts: tuple[str, ...], *, fresh: bool) -> bool:
        if is_check(node, parts):
            return True
        if not _is_of_job(parts, 5):
            return False
        if _NUMBER.fullmatch(parts[3]):
            return await self._has_attempt(node, _attempt_of(parts), fresh=fresh)
        if parts[3] != "checkpoints" or not _CHECKPOINT.fullmatch(parts[4]):
            return False
        return await self._has_newest(node, parts, fresh=fresh)

    async def _has_attempt(self, node: str, attempt: AttemptId, *, fresh: bool, alive: bool = False) -> bool:
        """Whether a node has a part of an attempt, or had it lately. `alive`: the attempt has not ended."""
        record = await self._read(("attempt", str(attempt)), read_attempt(attempt), fresh=fresh)
        if record is None or all(place.node != node for place in record.placement):
            return False
        return not _has_ended(record) or (not alive and self._is_recent(record))

    def _is_recent(self, record: AttemptRecord) -> bool:
        return record.ended is not None and time.time_ns() // 1000 < record.ended + self._late_us

    async def _holds_job(self, node: str, parts: tuple[str, ...], *, fresh: bool) -> bool:
        held = await self._held(node, fresh=fresh)
        if any((one.attempt.tenant, one.attempt.job) == parts[1:3] for one in held):
            return True
        return await self._has_newest(node, parts, fresh=fresh)

    async def _has_newest(self, node: str, parts: tuple[str, ...], *, fresh: bool) -> bool:
        """Whether a node has a part of the newest attempt of a job, and that has not ended."""
        tenant, job = parts[1:3]
        number = await self._read(("job", tenant, job), read_attempt_number(tenant, job), fresh=fresh)
        return await self._has_attempt(node, AttemptId(tenant, job, number), fresh=fresh, alive=True)

    async def _held(self, node: str, *, fresh: bool) -> tuple[HeldAttempt, ...]:
        return await self._read(("held", node), read_held_attempts(node), fresh=fresh)

    async def _read(self, key: object, call: Call[T], *, fresh: bool) -> T:
        found, until = self._cached.get(key, (None, 0.0))
        if fresh or time.monotonic() >= until:
            found = await self._store.run(call)
            self._remember(key, found, CACHE_SECONDS)
        return cast(T, found)  # what a call of this key has returned

    def _remember(self, key: object, found: object, seconds: float) -> None:
        keep_newest(self._cached, key, (found, time.monotonic() + seconds), MAX_CACHED)


def is_check(node: str, parts: tuple[str, ...]) -> bool:
    """Whether this is the file that a node tries the storage with."""
    return parts == PurePosixPath(node_check(node)).parts


def _is_of_job(parts: tuple[str, ...], least: int) -> bool:
    """What is not of the form of our ids reaches no key."""
    if len(parts) < least or parts[0] != "jobs":
        return False
    return _TENANT.fullmatch(parts[1]) is not None and _JOB.fullmatch(parts[2]) is not None


def _attempt_of(parts: tuple[str, ...]) -> AttemptId:
    return AttemptId(parts[1], parts[2], int(parts[3]))


def _is_bundle_of(held: HeldAttempt, path: PurePosixPath) -> bool:
    name = path.name.split(".")
    of_tenant = path.parts[:-1] == ("bundles", held.attempt.tenant)
    return bool(held.bundle) and of_tenant and len(name) == 3 and (name[0], name[2]) == (held.bundle, "zip")


def _has_ended(record: AttemptRecord) -> bool:
    return record.state is AttemptState.ENDED
