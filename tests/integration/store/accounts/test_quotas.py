"""Quotas of tenants and tokens: what they refuse, what waits for them, and that the counters are always right."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from jobs import store
from jobs.model.quota import Quota
from jobs.model.state import TERMINAL, JobState, StateReason
from jobs.store.accounts import quotas
from jobs.store.accounts.quotas import QuotaUsage
from shardyard.contract.errors import BundleQuota, OverQuota, QuotaExceeded
from tests.integration.store.invariants import violations
from tests.integration.store.world import TENANT, World, bundle_id

pytestmark = pytest.mark.integration

WAITS = StateReason.WAITING_FOR_QUOTA


def set_quota(world: World, token: str = "", tenant: str = TENANT, **limits: float) -> None:
    world.run(quotas.set_quota(tenant, token, Quota(**limits)))  # type: ignore[arg-type]


def usage_of(world: World, token: str = "") -> QuotaUsage:
    return world.run(quotas.read_quotas(TENANT, token))[-1]


def test_a_job_over_a_quota_on_running_jobs_waits_with_its_reason_and_starts_when_one_ends(world: World) -> None:
    world.node("n1", 4)
    set_quota(world, running=1)
    first, second = world.submit(), world.submit()
    assert world.dispatch() == [first]
    waiting = world.job(second)
    assert (waiting.state, waiting.reason) == (JobState.QUEUED, WAITS)
    assert waiting.message == "as many jobs of the tenant run as may run at a time: 1"
    assert world.dispatch() == []
    attempt = world.claim(first)
    world.finish_and_release(attempt)
    assert world.dispatch() == [second]


def test_a_job_that_waits_for_its_quota_holds_up_nobody(world: World) -> None:
    world.node("n1", 4)
    set_quota(world, tenant="acme", devices=2)
    large = [world.submit(2, tenant="acme", priority=100) for _ in range(3)]
    other = world.submit(2)
    assert world.dispatch() == [large[0], other]


def test_jobs_of_one_account_start_in_their_order_so_that_a_large_one_starts_in_the_end(world: World) -> None:
    world.node("n1", 8)
    set_quota(world, devices=4)
    small = [world.submit(1) for _ in range(3)]
    assert world.dispatch() == small
    large = world.submit(4)
    assert world.dispatch() == []
    late = world.submit(1)
    assert world.dispatch() == [], "it would fit, but then the large one would wait for ever"
    assert world.job(late).message == "an earlier job waits for room in the quota"
    for job in small:
        world.finish_and_release(world.claim(job))
    assert world.dispatch() == [large]


def test_a_job_that_its_quota_can_never_start_holds_up_none_of_its_account(world: World) -> None:
    world.node("n1", 8)
    large, small = world.submit(4), world.submit(1)
    set_quota(world, devices=2)
    assert world.dispatch() == [small]
    assert world.job(large).message == "the job needs 4 devices, and the tenant may have 2"
    later = world.submit(1)
    assert world.dispatch() == [later]
    set_quota(world, devices=8)
    assert world.dispatch() == [large]


def test_what_can_never_be_is_told_from_what_has_to_wait(world: World) -> None:
    world.node("n1", 8)
    set_quota(world, jobs=2, devices=4)
    with pytest.raises(OverQuota, match="the tenant may have 4 devices at a time, and this job needs more"):
        world.submit(5)
    first, _ = world.submit(), world.submit()
    with pytest.raises(QuotaExceeded, match="uses 2 of the 2 jobs that have not ended") as refused:
        world.submit()
    assert refused.value.retry_after == quotas.RETRY_SECONDS
    world.run(store.cancel(TENANT, first))
    world.submit()


def test_specs_are_counted_until_their_jobs_are_gone(world: World) -> None:
    world.node("n1", 1)
    set_quota(world, spec_bytes=100_000)
    job = world.submit()
    used = usage_of(world).used["spec_bytes"]
    assert used == len(world.redis.get(f"sy:spec:{TENANT}/{job}") or b"") > 0
    set_quota(world, spec_bytes=used)
    with pytest.raises(QuotaExceeded, match="bytes of stored specs"):
        world.submit()
    world.run(store.cancel(TENANT, job))
    world.run(store.delete_job(TENANT, job))
    assert usage_of(world).used["spec_bytes"] == 0
    world.submit()


def test_a_token_has_a_quota_of_its_own_beside_its_tenants(world: World) -> None:
    world.node("n1", 4)
    set_quota(world, running=3)
    set_quota(world, token="t1", running=1)
    mine, other = [world.submit(token="t1") for _ in range(3)], [world.submit(token="t2") for _ in range(3)]
    assert set(world.dispatch()) == {mine[0], other[0], other[1]}
    assert usage_of(world).used["running"] == 3
    assert usage_of(world, "t1").used["running"] == 1
    assert world.job(mine[1]).message == "as many jobs of this token run as may run at a time: 1"
    world.run(quotas.set_quota(TENANT, "t1", None))
    world.run(quotas.set_quota(TENANT, "", None))
    assert len(world.dispatch()) == 1, "without quotas it is a matter of devices"
    assert usage_of(world, "t1").used["running"] is None


def test_the_bundles_of_a_tenant_stay_within_its_quota(world: World) -> None:
    set_quota(world, bundle_bytes=150)
    assert world.put_bundle(1, size=100).created
    with pytest.raises(BundleQuota, match="more than 150"):
        world.put_bundle(2, size=100)
    assert usage_of(world).used["bundle_bytes"] == 100
    assert world.run(store.read_bundle(TENANT, bundle_id(2))) is None


def test_files_of_a_tenants_jobs_stop_new_ones_once_they_are_counted_to_be_too_many(world: World) -> None:
    world.node("n1", 4)
    set_quota(world, file_bytes=1000)
    set_quota(world, tenant="acme", jobs=5)
    assert world.run(quotas.list_file_quotas()) == (TENANT,)
    assert usage_of(world).used["file_bytes"] is None
    world.submit()
    world.run(quotas.note_file_bytes(TENANT, 1000))
    with pytest.raises(QuotaExceeded, match=r"1000 of the 1000 bytes of files of jobs.*delete finished jobs"):
        world.submit()
    world.run(quotas.note_file_bytes(TENANT, 999))
    assert usage_of(world).used["file_bytes"] == 999
    world.submit()
    world.run(quotas.set_quota(TENANT, "", None))
    world.run(quotas.note_file_bytes(TENANT, 1000))
    assert usage_of(world).used["file_bytes"] is None
    assert world.redis.exists("sy:usage:default") == 0


def test_device_hours_are_counted_while_jobs_run_and_stop_new_ones_until_the_window_has_passed(world: World) -> None:
    world.node("n1", 4)
    set_quota(world, device_hours=1, window_hours=24)
    running = world.submit(2)
    assert world.dispatch() == [running]
    world.redis.hset("sy:usage:default", "at", int((time.time() - 1800) * 1000))  # it has run half an hour
    next_one = world.submit()
    assert world.dispatch() == []
    assert "has used the device-hours" in world.job(next_one).message
    used = usage_of(world)
    assert used.used["device_hours"] == pytest.approx(1, abs=0.01)
    world.finish_and_release(world.claim(running))
    assert usage_of(world).used["device_hours"] == pytest.approx(1, abs=0.01)
    free_at = usage_of(world).hours_free_at
    assert free_at is not None
    assert 23.4 < (free_at / 1000 - time.time()) / 3600 < 25.1
    window = {name: seconds for name, seconds in world.redis.hgetall("sy:usage:default").items() if name[:2] == b"s:"}
    world.redis.hdel("sy:usage:default", *window)
    for name, seconds in window.items():  # a day and two hours pass
        world.redis.hset("sy:usage:default", f"s:{int(name[2:]) - 26 * 3_600_000}", seconds)
    assert usage_of(world).hours_free_at is None
    assert world.dispatch() == [next_one]


def test_a_quota_that_is_set_later_counts_what_is_there(world: World) -> None:
    world.node("n1", 2)
    running = world.running(2)
    world.submit()
    set_quota(world, jobs=100)
    used = usage_of(world).used
    assert (used["jobs"], used["running"], used["devices"]) == (2, 1, 2)
    world.finish_and_release(running)


def test_counters_that_a_version_without_quotas_left_wrong_are_counted_again(world: World) -> None:
    world.node("n1", 2)
    set_quota(world, running=1)
    world.submit()
    world.redis.hset("sy:usage:default", mapping={"running": 7, "jobs": 9})
    assert world.dispatch() == []
    assert world.run(quotas.recount_quotas()) == 1
    assert len(world.dispatch()) == 1


def test_a_dispatch_parks_so_many_jobs_and_the_next_one_goes_on(world: World) -> None:
    world.node("n1", 2)
    set_quota(world, running=0)
    world.run(quotas.set_quota(TENANT, "", None))
    for _ in range(250):
        world.submit(tenant="acme", priority=1)
    mine = world.submit()
    world.run(quotas.set_quota("acme", "", Quota(running=0)))
    assert world.dispatch() == []
    assert world.dispatch() == [mine]


# -- a model ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelJob:
    state: JobState
    token: str
    devices: int
    spec_bytes: int


@dataclass
class Model:
    """What the service should have, by plain counting."""

    jobs: dict[str, ModelJob] = field(default_factory=dict)
    quotas: dict[str, Quota] = field(default_factory=dict)

    def used(self, token: str) -> dict[str, int]:
        mine = [job for job in self.jobs.values() if not token or job.token == token]
        runs = [job for job in mine if job.state in (JobState.STARTING, JobState.RUNNING)]
        return {
            "jobs": sum(job.state not in TERMINAL for job in mine),
            "running": len(runs),
            "devices": sum(job.devices for job in runs),
            "spec_bytes": sum(job.spec_bytes for job in mine),
        }

    def quotas_for(self, token: str) -> Iterator[tuple[Quota, dict[str, int]]]:
        for account in ("", token):
            if account in self.quotas:
                yield self.quotas[account], self.used(account)

    def accepts(self, token: str, devices: int) -> bool:
        return all(
            (quota.devices is None or devices <= quota.devices)
            and quota.running != 0
            and (quota.jobs is None or used["jobs"] < quota.jobs)
            for quota, used in self.quotas_for(token)
        )

    def can_ever_start(self, job: ModelJob) -> bool:
        return all(
            (quota.devices is None or job.devices <= quota.devices) and quota.running != 0
            for quota, _ in self.quotas_for(job.token)
        )


class Walk:
    """One random history on a node of four devices."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.random, self.model = world, random.Random(seed), Model()
        world.redis.flushdb()
        world.node("n1", 4)
        for token in self.random.sample(["", "a", "b"], 2):
            self.set_quota(token)

    def set_quota(self, token: str) -> None:
        choose = self.random.choice
        quota = Quota(jobs=choose((None, 3, 6)), running=choose((None, 1, 2, 3)), devices=choose((None, 1, 2, 4)))
        self.world.run(quotas.set_quota(TENANT, token, quota))
        self.model.quotas[token] = quota

    def step(self) -> None:
        before = {token: self.model.used(token) for token in self.model.quotas}
        self.random.choice((self.submit, self.submit, self.dispatch, self.dispatch, self.end, self.cancel, self.more))()
        for token, quota in self.model.quotas.items():
            used = self.model.used(token)
            assert {name: usage_of(self.world, token).used[name] for name in used} == used
            for limit in ("jobs", "running", "devices"):
                most = getattr(quota, limit)
                assert most is None or used[limit] <= max(most, before.get(token, used)[limit])

    def submit(self) -> None:
        token, devices = self.random.choice("ab"), self.random.choice((1, 1, 2, 3))
        try:
            job = self.world.submit(devices, token=token, priority=self.random.choice((0, 1)), retries=1)
        except (OverQuota, QuotaExceeded):
            assert not self.model.accepts(token, devices)
            return
        assert self.model.accepts(token, devices)
        size = self.world.redis.strlen(f"sy:spec:{TENANT}/{job}")
        self.model.jobs[job] = ModelJob(JobState.QUEUED, token, devices, size)

    def dispatch(self) -> list[str]:
        started = self.world.dispatch()
        for job in started:
            self.note(job, JobState.STARTING)
        return started

    def note(self, job: str, state: JobState) -> None:
        self.model.jobs[job] = replace(self.model.jobs[job], state=state)

    def pick(self, *states: JobState) -> str | None:
        found = sorted(job for job, known in self.model.jobs.items() if known.state in states)
        return self.random.choice(found) if found else None

    def end(self, *, reasons: tuple[StateReason, ...] = (StateReason.COMPLETED, StateReason.RANK_FAILED)) -> None:
        job = self.pick(JobState.STARTING)
        if job is not None:
            attempt, reason = self.world.claim(job), self.random.choice(reasons)
            if self.random.random() < 0.3:
                assert self.world.reap(attempt, heartbeat=None)
            else:
                assert self.world.finish(attempt, reason)
            self.world.release(attempt)
            self.note(job, self.world.state(job))

    def cancel(self) -> None:
        job = self.pick(JobState.QUEUED, JobState.STARTING)
        if job is not None:
            self.world.run(store.cancel(TENANT, job))
            self.note(job, JobState.CANCELLED)

    def more(self) -> None:
        job = self.pick(*TERMINAL)
        if job is not None and self.random.random() < 0.7:
            self.world.run(store.delete_job(TENANT, job))
            del self.model.jobs[job]
        else:
            self.set_quota(self.random.choice(["", "a", "b"]))

    def drain(self) -> None:
        """Whatever may start, starts in the end."""
        for _ in range(100):
            changes = self.world.redis.xlen("sy:changes")
            self.dispatch()
            while job := self.pick(JobState.STARTING):
                attempt = self.world.claim(job)
                assert self.world.finish(attempt)
                self.world.release(attempt)
                self.note(job, JobState.SUCCEEDED)
            if changes == self.world.redis.xlen("sy:changes") and not self.end_backoff():
                break
        left = {job: known for job, known in self.model.jobs.items() if known.state is JobState.QUEUED}
        startable = [self.world.job(job) for job, known in left.items() if self.model.can_ever_start(known)]
        assert startable == []

    def end_backoff(self) -> bool:
        """Make all waits between attempts be over."""
        waiting = [ref.decode() for ref in self.world.redis.zrange("sy:backoff", 0, -1) if isinstance(ref, bytes)]
        for ref in waiting:
            self.world.redis.zadd("sy:backoff", {ref: 0})
        return bool(waiting)


def walk_histories(world: World, count: int, steps: int, *, checked_each: int) -> None:
    for seed in range(count):
        walk = Walk(world, seed)
        try:
            for _ in range(steps):
                walk.step()
            walk.drain()
            assert seed % checked_each or violations(world.redis) == []
        except AssertionError as error:
            error.add_note(f"the history of seed {seed}")
            raise
    world.redis.flushdb()


def test_no_history_takes_a_counter_above_its_quota_or_from_a_recount(world: World) -> None:
    walk_histories(world, 20, 30, checked_each=5)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_history_of_ten_thousand_takes_a_counter_above_its_quota_or_from_a_recount(world: World) -> None:
    walk_histories(world, 10_000, 30, checked_each=50)
