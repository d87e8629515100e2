"""The service of profiles: asks the ranks of a running job for traces of a few steps, and reports what became of it."""

from functools import partial

from api.data.file_threads import AttemptStorage
from api.data.job_repository import JobRepository
from api.http import audit
from api.http.auth import Principal
from api.schemas.result_requests import parse_profile
from jobs import store
from jobs.files import profiles
from jobs.model.state import AttemptState
from jobs.store import AttemptId, ProfileRequest
from jobs.store.client import AsyncRedisStore
from shardyard.contract.errors import JobNotRunning, NotFound
from shardyard.contract.responses import ProfileList, ProfileView, at

#: The state of a profile that has no record, and gets none any more: its attempt has ended.
LOST = "lost"


class ProfileService:
    def __init__(self, control: AsyncRedisStore, records: JobRepository, storage: AttemptStorage) -> None:
        self._store = control
        self._records = records
        self._storage = storage

    async def request_profile(self, who: Principal, job: str, body: bytes) -> ProfileView:
        """Have all ranks of a running job record some steps.

        Raises:
            MalformedJson, InvalidRequest: the body does not say clearly how many steps.
            JobNotRunning, ProfileRunning, Conflict: it cannot be profiled now.
        """
        steps = parse_profile(body)
        try:
            attempt, number = await self._store.run(store.request_profile(who.tenant, job, steps))
        except NotFound:
            if await self._records.read_archived(who.tenant, job) is None:
                raise
            raise JobNotRunning(f"job {job} has ended; only a running job can be profiled") from None
        audit.log_audit_event(who, "profile_requested", job=job, attempt=attempt, number=number, steps=steps)
        asked = await self._store.run(store.read_profile(AttemptId(who.tenant, job, attempt)))
        return ProfileView(number, attempt, steps, "recording", None if asked is None else at(asked.at))

    async def list_profiles(self, who: Principal, job: str, number: int | None) -> ProfileList:
        """The profiles of an attempt (default: the newest).

        Raises:
            NotFound: there is no such attempt.
        """
        attempts = await self._records.read_attempts(who.tenant, job)
        if number is None and not attempts:
            return ProfileList([], 0)
        chosen = next((one for one in reversed(attempts) if number in (None, one.number)), None)
        if chosen is None:
            raise NotFound(f"job {job} has no attempt {number}")
        asked = await self._store.run(store.read_profile(AttemptId(who.tenant, job, chosen.number)))
        directory = self._storage.attempt_dir(who.tenant, job, chosen.number)
        await self._storage.bring_profiles(directory)
        found = await self._storage.run_in_thread(partial(profiles.list_profiles, directory))
        if asked is None:
            return ProfileList(found, len(found))
        # A record is there a moment before the next profile may be asked for.
        is_over = chosen.state is AttemptState.ENDED or asked.state == "done"
        if not is_over or all(one.number != asked.number for one in found):
            found = [one for one in found if one.number != asked.number]
            found.append(_unfinished_view(asked, chosen.number, LOST if is_over else "recording"))
        return ProfileList(found, len(found))


def _unfinished_view(asked: ProfileRequest, attempt: int, state: str) -> ProfileView:
    return ProfileView(asked.number, attempt, asked.steps, state, at(asked.at))
