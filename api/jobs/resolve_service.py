"""The service that finds the job that people mean: by its id or a part of it, by its name, or by how new it is."""

import asyncio
import difflib
import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Literal

from msgspec import structs

from api.data import archive
from api.data.file_threads import AttemptStorage
from api.http.auth import Principal
from api.jobs.service import JobService
from jobs import store
from jobs.model.records import JobRow
from jobs.store import FoundJobs, JobFilter
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import AmbiguousReference, FieldError, NotFound, Unavailable
from shardyard.contract.plain_text import escape_unsafe
from shardyard.contract.responses import JobReference, ResolvedJob, at

#: Jobs that a refusal lists, and that a name is said to have beside the newest.
MAX_LISTED = 10
#: The newest jobs, whose names may be what was meant.
MAX_NAMES = 200
#: Calls that the index by the ends of ids is completed by, each for a thousand jobs.
MAX_INDEX_CALLS = 1000
_WHOLE_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PART_OF_ID = re.compile(r"[0-9a-f-]{1,35}")
_LAST = re.compile(r"@last(?:~([0-9]{1,3}))?")

Match = Literal["id", "prefix", "suffix", "name", "last"]


class ResolveService:
    def __init__(self, control: AsyncRedisStore, jobs: JobService, storage: AttemptStorage) -> None:
        self._store = control
        self._jobs = jobs
        self._storage = storage

    async def resolve(self, who: Principal, reference: str) -> ResolvedJob:
        """The job of the caller's tenant that a reference stands for.

        Raises:
            NotFound: none.
            AmbiguousReference: several.
        """
        ref = reference.strip()
        if ref.startswith("@"):
            return await self._show(who, await self._find_last(who, ref), "last")
        part = ref.lower()
        if _WHOLE_ID.fullmatch(part):
            return await self._show(who, part, "id")
        by_id, by_name = await asyncio.gather(self._find_by_id(who, part), self._find_by_name(who, ref))
        if not by_name and not (by_id.beginning or by_id.ending):
            by_id, by_name = await self._find_archived(who, part, ref)
        ids = dict.fromkeys((*by_id.beginning, *by_id.ending))
        named = [job.id for job in by_name]
        if len(ids) > 1 or (named and not ids.keys() <= set(named)):
            raise AmbiguousReference(*await self._describe_choice(who, ref, [*ids, *named[:1]]))
        if ids:
            (job,) = ids
            return await self._show(who, job, "prefix" if by_id.beginning else "suffix")
        if not named:
            raise await self._not_found(who, ref)
        others = [_reference(job) for job in by_name[1 : 1 + MAX_LISTED]]
        return await self._show(who, named[0], "name", others)

    async def _show(self, who: Principal, job: str, matched: Match, others: Sequence[JobReference] = ()) -> ResolvedJob:
        status = await self._jobs.read_status(who, job)
        return ResolvedJob(**structs.asdict(status), matched=matched, others=list(others))

    async def _find_last(self, who: Principal, ref: str) -> str:
        found = _LAST.fullmatch(ref)
        if found is None:
            raise NotFound(
                f"there is no job {_shown(ref)}; write @last, or @last~2 for the second before it",
                fields=(FieldError("ref", "write @last alone, or followed by ~ and a number up to 999"),),
            )
        back = int(found[1] or 0)
        jobs = await self._store.run(store.newest_jobs(who.tenant, who.token, back + 1))
        if back < len(jobs):
            return jobs[back]
        there_are = f"the oldest one there is @last~{len(jobs) - 1}" if jobs else "there is no job yet"
        raise NotFound(f"there is no job {ref}; {there_are}")

    async def _find_by_id(self, who: Principal, part: str) -> FoundJobs:
        if _PART_OF_ID.fullmatch(part) is None:
            return FoundJobs((), ())
        for _ in range(MAX_INDEX_CALLS):
            found = await self._store.run(store.find_jobs(who.tenant, part, MAX_LISTED + 1))
            if found is not None:
                return found
        raise Unavailable("the jobs of your tenant are being indexed; try again in a moment", retry_after=1)

    async def _find_by_name(self, who: Principal, name: str) -> Sequence[JobRow]:
        page = await self._store.run(store.list_jobs(who.tenant, JobFilter(name=name), limit=MAX_LISTED + 1))
        return page.jobs

    async def _find_archived(self, who: Principal, part: str, name: str) -> tuple[FoundJobs, Sequence[JobRow]]:
        root, files, tenant, limit = self._storage.root, self._storage.files, who.tenant, MAX_LISTED + 1
        ids: list[str] = []
        if _PART_OF_ID.fullmatch(part):
            ids = await self._storage.fetch_in_thread(partial(archive.find_ids, root, tenant, part, limit, files))
        read = partial(archive.read_page, root, tenant, JobFilter(name=name), limit=limit, files=files)
        page = await self._storage.fetch_in_thread(read)
        beginning = tuple(job for job in ids if job.startswith(part))
        return FoundJobs(beginning, tuple(job for job in ids if job not in beginning)), page.jobs

    async def _describe_choice(
        self, who: Principal, ref: str, ids: Sequence[str]
    ) -> tuple[str, tuple[JobReference, ...]]:
        """What to say of several jobs, and as much of each as is needed to choose."""
        listed = ids[:MAX_LISTED]
        records = await self._store.run(store.read_records([(who.tenant, job) for job in listed]))
        found = zip(listed, records, strict=True)
        candidates = tuple(JobReference(id=job) if row is None else _reference(row) for job, row in found)
        more = " and more" if len(ids) > MAX_LISTED else ""
        shown = ", ".join(f"{job.id} ({escape_unsafe(job.name)})" if job.name else job.id for job in candidates)
        return f"{_shown(ref)} stands for several jobs: {shown}{more}; give more of the id", candidates

    async def _not_found(self, who: Principal, ref: str) -> NotFound:
        page = await self._store.run(store.list_jobs(who.tenant, JobFilter(), limit=MAX_NAMES))
        near = _similar_names(ref, (job.name for job in page.jobs))
        if near:
            hint = "did you mean " + " or ".join(_shown(name) for name in near) + "?"
        else:
            hint = "give an id, a beginning or an end of one, a name, or @last"
        return NotFound(f"there is no job {_shown(ref)}; {hint}", fields=(FieldError("ref", hint),))


def _similar_names(ref: str, names: Iterable[str]) -> list[str]:
    by_folded = {name.casefold(): name for name in names}
    return [by_folded[near] for near in difflib.get_close_matches(ref.casefold(), by_folded, n=3)]


def _reference(job: JobRow) -> JobReference:
    return JobReference(id=job.id, name=job.name, state=str(job.state), created_at=at(job.created))


def _shown(text: str) -> str:
    return f"'{escape_unsafe(text)}'"
