"""Random interleavings of everything that users, dispatchers, supervisors, reapers and nodes may do."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobs import store
from jobs.model.pool_policy import PoolPolicy
from jobs.model.quota import Quota
from jobs.model.records import AttemptRecord, BoxRights, JobRecord, PartRecord
from jobs.model.state import (
    CAUSE_OF,
    STATE_OF,
    TERMINAL,
    TRANSITIONS,
    AttemptState,
    JobState,
    StateReason,
    SupervisorCommand,
)
from jobs.store import ArchiveOutcome, AttemptId, NodeStanding, PartId, groups, shares
from jobs.store.accounts import quotas
from shardyard.contract.errors import (
    InvalidSpec,
    JobFinished,
    JobNotFinished,
    NotFound,
    OverQuota,
    QuotaExceeded,
    TooLargeForPool,
    UnknownBundle,
)
from tests.integration.store.invariants import violations
from tests.integration.store.world import NEVER, TENANT, World, script

pytestmark = pytest.mark.integration

NODES = ("n1", "n2", "n3")
TENANTS = (TENANT, "acme", "globex")
#: What nodes may say of whom they reach, and where they stand; only the first three go together.
PLACES = (("network", "a"), ("network", "a"), ("network", ""), ("loopback:host", ""), ("", ""))
BOXES = (None, BoxRights("none", {}), BoxRights("user", {"network": "no"}), BoxRights("full", {}))
POLICIES = tuple(
    PoolPolicy(box, network, preempt=preempt)
    for box in ("any", "user", "full")
    for network, preempt in (("none", True), ("host", False))
)
#: "" is no token: its quota is the tenant's.
TOKENS = ("", "token")
QUOTAS = (None, None, Quota(running=1), Quota(devices=2, jobs=4), Quota(running=2, devices=3, spec_bytes=2000))
NODE_CHANGES = ("restarts", "goes down", "stops", "drains", "leaves", "undrains", "loses a device", "gets it back")
#: How a supervisor may end an attempt; the other reasons belong to the control plane.
ENDS = sorted(CAUSE_OF)
#: What becomes of a stop of which the supervisor does not know why.
STOPPED = {StateReason.DRAINED, StateReason.STORAGE_LOW, StateReason.SUSPENDED, StateReason.PREEMPTED}
LIVE = (AttemptState.LEASED, AttemptState.CLAIMED)

QUICK = settings(max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class History(RuleBasedStateMachine):
    """Supervisors "x" and "y" write to any attempt, so also long after they lost it, or where they never held it."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.world.redis.flushall()
        self.seen: dict[str, JobRecord] = {}
        self.stale_beats: list[tuple[PartId, int]] = []
        self.cancelled: set[str] = set()
        self.depends: dict[str, list[str]] = {}
        self.ends: dict[str, JobState] = {}
        self.groups: list[str] = []
        self.cancelled_groups: set[str] = set()
        self.places = dict.fromkeys(NODES, ("network", ""))

    @initialize(sizes=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)), boxes=st.permutations(BOXES))
    def nodes_register(self, sizes: tuple[int, int, int], boxes: list[BoxRights | None]) -> None:
        for name, size, box in zip(NODES, sizes, boxes[: len(NODES)], strict=True):
            self.world.node(name, size, box=box)

    # -- users -------------------------------------------------------------------------------------

    @rule(
        devices=st.integers(1, 4),
        nodes=st.sampled_from((1, 1, 2, 3)),
        priority=st.integers(-1, 1),
        retries=st.integers(0, 2),
        token=st.sampled_from(TOKENS),
        tenant=st.sampled_from(TENANTS),
        start=st.sampled_from((None, None, 3600)),
    )
    def submit(
        self,
        devices: int,
        nodes: int,
        priority: int,
        retries: int,
        token: str,
        tenant: str,
        start: float | None = None,
    ) -> None:
        try:
            job = self.world.submit(
                devices,
                nodes=nodes,
                priority=priority,
                retries=retries,
                token=token,
                tenant=tenant,
                start_after=start,
            )
        except (TooLargeForPool, OverQuota, QuotaExceeded):
            return
        self.seen[job] = self.world.job(job)

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), start=st.sampled_from((None, None, 3600)))
    def submit_what_waits(self, data: st.DataObject, start: float | None) -> None:
        """Jobs that wait are themselves waited for, so that chains come about."""
        jobs = data.draw(st.lists(st.sampled_from(sorted(self.seen)), min_size=1, max_size=3, unique=True))
        tenant = self.world.tenant(jobs[0])
        own = [job for job in jobs if self.world.tenant(job) == tenant]
        try:
            job = self.world.submit(tenant=tenant, depends_on=own, start_after=start)
        except (OverQuota, QuotaExceeded):
            return
        except InvalidSpec:
            assert any(job not in self.seen for job in own)
            return
        self.seen[job] = self.world.job(job)
        self.depends[job] = own

    @rule(
        devices=st.lists(st.integers(1, 2), min_size=1, max_size=4),
        concurrent=st.integers(1, 2),
        tenant=st.sampled_from(TENANTS),
        repeated=st.booleans(),
    )
    def submit_a_group(self, devices: list[int], concurrent: int, tenant: str, repeated: bool) -> None:
        """A repeat, as of one whose answer was lost, makes no job twice."""
        group, call = self.world.new_group(devices, concurrent=concurrent, tenant=tenant)
        try:
            for _ in range(1 + repeated):
                assert self.world.run(call).created
        except (TooLargeForPool, OverQuota, QuotaExceeded):
            return
        assert len(self.world.children(group)) == len(devices)
        self.groups.append(group)
        self.see_children(group)

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), devices=st.lists(st.integers(1, 2), min_size=1, max_size=2), first=st.integers(0, 4))
    def extend_a_group(self, data: st.DataObject, devices: list[int], first: int) -> None:
        group = data.draw(st.sampled_from(self.groups))
        call = self.world.more_children(group, devices, first=first)
        with suppress(TooLargeForPool, OverQuota, QuotaExceeded):
            if self.world.run(call):
                assert group not in self.cancelled_groups
                assert set(range(first, first + len(devices))) <= self.world.children(group).keys()
        self.see_children(group)

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def cancel_a_group(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from(self.groups))
        with suppress(NotFound):
            self.world.run(groups.cancel_group(self.world.tenant(group), group, "sweep"))
            self.cancelled_groups.add(group)
            alive = {job for job in self.world.children(group).values() if job in self.seen}
            self.cancelled |= {job for job in alive if self.seen[job].state not in TERMINAL}

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.seen)))
        try:
            self.world.run(store.cancel(self.world.tenant(job), job))
            self.cancelled.add(job)
        except JobFinished:
            assert self.seen[job].state in TERMINAL

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), call=st.sampled_from((store.suspend, store.resume)))
    def suspend_or_resume(self, data: st.DataObject, call: Callable[[str, str], store.Call[object]]) -> None:
        job = data.draw(st.sampled_from(sorted(self.seen)))
        try:
            self.world.run(call(self.world.tenant(job), job))
        except JobFinished:
            assert self.seen[job].state in TERMINAL or job in self.cancelled

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.seen)))
        try:
            self.world.run(store.delete_job(self.world.tenant(job), job))
            assert self.seen.pop(job).state in TERMINAL
        except JobNotFinished:
            assert self.seen[job].state not in TERMINAL

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def archive(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(sorted(self.seen)))
        found = self.world.run(store.snapshot(self.world.tenant(job), job))
        assert (found is not None) == (self.seen[job].state in TERMINAL)
        if found is not None:
            assert self.world.run(store.archive_job(self.world.tenant(job), job, found.version)) is ArchiveOutcome.DONE
            self.seen.pop(job)

    @rule(bundle=st.integers(1, 2), what=st.sampled_from(("upload", "submit", "submit", "collect")))
    def bundles_come_and_go(self, bundle: int, what: str) -> None:
        match what:
            case "upload":
                self.world.put_bundle(bundle)
            case "submit":
                try:
                    job = self.world.submit(1, program=script(bundle))
                except (UnknownBundle, OverQuota, QuotaExceeded):
                    return
                self.seen[job] = self.world.job(job)
            case _:
                self.world.run(store.collect_bundles(0))

    # -- dispatchers and reapers -------------------------------------------------------------------

    @rule(hold=st.sampled_from((0.0, NEVER)))
    def dispatch(self, hold: float) -> None:
        for attempt in self.world.run(store.dispatch(hold)).created:
            assert attempt.job not in self.cancelled, "nothing starts after a cancel"
            self.dependencies_have_succeeded(attempt)
            self.attempt_meets_the_policy(attempt)
            self.gang_stands_together(attempt)

    @rule(tenant=st.sampled_from(TENANTS), weight=st.sampled_from((None, 0.5, 10.0)))
    def operator_sets_a_share(self, tenant: str, weight: float | None) -> None:
        self.world.run(shares.set_share(tenant, weight))

    @rule()
    def leader_settles_shares(self) -> None:
        self.world.run(shares.settle_shares())

    @rule()
    def watch_beats(self) -> None:
        self.stale_beats = list(self.world.run(store.read_heartbeats()).leases.items())

    @precondition(lambda self: self.stale_beats)
    @rule(data=st.data())
    def reap_what_stood_still(self, data: st.DataObject) -> None:
        part, heartbeat = data.draw(st.sampled_from(self.stale_beats))
        still = self.world.run(store.read_heartbeats()).leases.get(part) == heartbeat
        assert self.world.reap(part.attempt, heartbeat=heartbeat, node=part.node) == still

    # -- supervisors -------------------------------------------------------------------------------

    @rule(retries=st.integers(0, 2), marked=st.booleans())
    def a_job_starts(self, retries: int, marked: bool) -> None:
        """The usual course in one step, so that histories get far."""
        self.submit(1, 1, 1, retries, "", TENANT)
        for attempt in self.world.run(store.dispatch(NEVER)).created:
            self.dependencies_have_succeeded(attempt)
            self.attempt_meets_the_policy(attempt)
            self.gang_stands_together(attempt)
            self.world.claim(attempt.job, "x")
            self.states_move_along_the_diagram()  # here too: it looks at one move at a time
            if marked:
                assert self.world.mark(attempt, by="x")

    @precondition(lambda self: self.attempts())
    @rule(data=st.data(), claimant=st.sampled_from("xy"))
    def claim(self, data: st.DataObject, claimant: str) -> None:
        attempt = data.draw(st.sampled_from(self.attempts()))
        record = self.world.history(attempt.job)[attempt.number - 1]
        part = data.draw(st.integers(0, len(record.followers)))
        claimed = self.parts(record)[part]
        link = f"link of {claimant}" if part == 0 else ""
        reply = self.world.run(store.claim(attempt, claimant, claimed.node, link))
        is_open = record.state in LIVE and claimed.state is AttemptState.LEASED
        assert reply.granted == (is_open or self.holds(record, claimant, part))
        assert not reply.granted or reply.part == part
        leader = record.claimant if part > 0 and reply.granted else None
        assert reply.link in ({f"link of {leader}", ""} if leader else {""}), "claims in one step leave no link"
        self.links_are_of_live_attempts()

    @precondition(lambda self: self.attempts())
    @rule(data=st.data(), claimant=st.sampled_from("xxy"), reason=st.sampled_from(ENDS), times=st.integers(1, 2))
    def finish(self, data: st.DataObject, claimant: str, reason: StateReason, times: int) -> None:
        attempt = data.draw(st.sampled_from(self.attempts()))
        record = self.world.history(attempt.job)[attempt.number - 1]
        stopped = STOPPED if reason is StateReason.SERVICE_STOPPED else set()
        again = record.claimant == claimant and record.reason in {reason, *stopped}
        for _ in range(times):
            assert self.world.finish(attempt, reason, by=claimant) == (self.holds(record, claimant) or again)

    @precondition(lambda self: self.attempts())
    @rule(data=st.data(), claimant=st.sampled_from("xxy"), times=st.integers(1, 2))
    def abandon(self, data: st.DataObject, claimant: str, times: int) -> None:
        attempt = data.draw(st.sampled_from(self.attempts()))
        record, before = self.world.history(attempt.job)[attempt.number - 1], self.world.job(attempt.job)
        node = data.draw(st.sampled_from(self.parts(record))).node
        said = f"{node} has not joined"
        again = record.state is AttemptState.ENDED and (record.claimant, record.message) == (claimant, said)
        for _ in range(times):
            given_up = self.world.run(store.abandon(attempt, claimant, node, said))
            assert given_up == (self.holds(record, claimant) or again)
        now = self.world.job(attempt.job)
        assert now.retries == before.retries
        assert before.state is JobState.RUNNING or now.losses == before.losses, "nothing of it ran"

    @precondition(lambda self: self.attempts())
    @rule(data=st.data(), claimant=st.sampled_from("xxy"))
    def renew_mark_and_ask(self, data: st.DataObject, claimant: str) -> None:
        attempt = data.draw(st.sampled_from(self.attempts()))
        record = self.world.history(attempt.job)[attempt.number - 1]
        for part in range(1, len(record.followers) + 1):
            command = SupervisorCommand.GO if self.holds(record, claimant, part) else SupervisorCommand.LOST
            assert self.world.run(store.renew_lease(attempt, claimant, part)) is command
            assert self.world.run(store.read_command(attempt, claimant, part)) is command
        holds = self.holds(record, claimant)
        assert (self.world.run(store.renew_lease(attempt, claimant)) is not SupervisorCommand.LOST) == holds
        assert self.world.mark(attempt, by=claimant) == holds
        assert (self.world.run(store.read_command(attempt, claimant)) is not SupervisorCommand.LOST) == holds

    # -- nodes -------------------------------------------------------------------------------------

    @rule(node=st.sampled_from(NODES), spoil=st.booleans())
    def sweep(self, node: str, spoil: bool) -> None:
        """What the node's agent does after every beat; rarely a device's processes will not die."""
        heartbeat = self.world.run(store.renew_node(node, "i1"))
        assert heartbeat.standing is NodeStanding.OK
        for attempt, state in heartbeat.holding.items():
            changed = self.world.release(attempt, {0: "undead", 1: "undead"} if spoil else None, node=node)
            assert (changed == -1) == (state in LIVE)

    @precondition(lambda self: self.attempts())
    @rule(data=st.data(), reason=st.sampled_from((StateReason.REJECTED_BY_WORKER, StateReason.START_FAILED)))
    def refuse(self, data: st.DataObject, reason: StateReason) -> None:
        attempt = data.draw(st.sampled_from(self.attempts()))
        record = self.world.history(attempt.job)[attempt.number - 1]
        part = data.draw(st.sampled_from(self.parts(record)))
        accepted = self.world.run(store.refuse(attempt, part.node, reason, "no"))
        assert accepted == (record.state in LIVE and part.state is AttemptState.LEASED)

    @rule(token=st.sampled_from(TOKENS), quota=st.sampled_from(QUOTAS))
    def operator_sets_a_quota(self, token: str, quota: Quota | None) -> None:
        self.world.run(quotas.set_quota(TENANT, token, quota))

    @rule(policy=st.sampled_from(POLICIES))
    def operator_sets_a_policy(self, policy: PoolPolicy) -> None:
        self.world.run(store.set_policy("default", policy))

    @rule(
        node=st.sampled_from(NODES),
        size=st.integers(1, 4),
        what=st.sampled_from(NODE_CHANGES),
        box=st.sampled_from(BOXES),
        place=st.sampled_from(PLACES),
    )
    def node_changes(self, node: str, size: int, what: str, box: BoxRights | None, place: tuple[str, str]) -> None:
        match what:
            case "goes down":
                assert self.world.run(store.take_down_node(node, None))
            case "stops":
                self.world.run(store.stop_node(node))
            case "drains":
                self.world.run(store.drain_node(node, deadline_seconds=(None, None, 600, 0, 0)[size]))
            case "leaves":
                self.world.run(store.leave_node(node))
            case "undrains":
                self.world.run(store.undrain_node(node))
            case "loses a device":
                with suppress(NotFound):
                    self.world.run(store.quarantine_device(node, size - 1, "by hand"))
            case "gets it back":
                with suppress(NotFound):
                    self.world.run(store.unquarantine(node, size - 1))
            case _:
                reach, topology = place
                self.world.node(node, size, box=box, reach=reach, topology=topology)
                self.places[node] = place

    # -- what must hold after every step -----------------------------------------------------------

    @invariant()
    def store_is_consistent(self) -> None:
        assert violations(self.world.redis) == []

    @invariant()
    def states_move_along_the_diagram(self) -> None:
        for job, before in self.seen.items():
            now = self.world.job(job)
            assert STATE_OF[now.reason] is now.state
            assert now.version >= before.version
            if now.state in TERMINAL:
                self.ends[job] = now.state
            if now.reason is StateReason.DEPENDENCY_FAILED:
                assert any(self.ends.get(each) not in (None, JobState.SUCCEEDED) for each in self.depends[job])
            if before.state in TERMINAL:
                assert now == before
            elif now.state is not before.state:
                through_running = (before.state, now.state) == (JobState.STARTING, JobState.SUCCEEDED) and now.started
                assert now.state in TRANSITIONS[before.state] or through_running
            if job in self.cancelled:
                assert now.state is not JobState.QUEUED
            self.seen[job] = now

    # -- helpers -----------------------------------------------------------------------------------

    def see_children(self, group: str) -> None:
        for job in self.world.children(group).values():
            if job not in self.ends and job not in self.seen:
                self.seen[job] = self.world.job(job)

    def attempts(self) -> list[AttemptId]:
        """All attempts, newest jobs first: those are the ones that hypothesis draws most."""
        numbers = {job: range(record.attempt, 0, -1) for job, record in sorted(self.seen.items(), reverse=True)}
        tenant = self.world.tenant
        return [AttemptId(tenant(job), job, number) for job, attempts in numbers.items() for number in attempts]

    def attempt_meets_the_policy(self, attempt: AttemptId) -> None:
        """Of one that was dispatched just now: its node has the box, and its network is the one that follows."""
        record = self.world.history(attempt.job)[attempt.number - 1]
        nodes = {node.id: node for node in self.world.run(store.read_fleet()).nodes}
        for part in self.parts(record):
            assert nodes[part.node].policy.accepts_box(nodes[part.node].info.box_level)
        node = nodes[record.node]
        alone = self.world.job(attempt.job).nodes == 1
        expected = node.policy.network if alone and node.info.has_right("network") else "host"
        assert record.network == self.world.job(attempt.job).network == expected

    def dependencies_have_succeeded(self, attempt: AttemptId) -> None:
        """Of one that was dispatched just now. No job is forgotten before its end was seen here."""
        assert {self.ends.get(job) for job in self.depends.get(attempt.job, [])} <= {JobState.SUCCEEDED}

    def gang_stands_together(self, attempt: AttemptId) -> None:
        """Of one that was dispatched just now: it has as many devices of as many nodes as it wants, which reach each
        other."""
        record, job = self.world.history(attempt.job)[attempt.number - 1], self.world.job(attempt.job)
        parts = self.parts(record)
        assert [len(part.leased) for part in parts] == [job.devices] * job.nodes
        assert [(placed.node, placed.devices) for placed in job.followers] == [
            (part.node, part.leased) for part in record.followers
        ]
        if job.nodes > 1:
            reaches = {self.places[part.node][0] for part in parts}
            assert len(reaches) == 1
            assert reaches != {""}

    def links_are_of_live_attempts(self) -> None:
        """And of those that a leader has claimed."""
        for attempt in self.attempts():
            record = self.world.history(attempt.job)[attempt.number - 1]
            link = self.world.redis.hget(f"sy:attempt:{attempt}", "link")
            if link is not None:
                assert record.state is AttemptState.CLAIMED
                assert link == f"link of {record.claimant}".encode()

    def parts(self, attempt: AttemptRecord) -> list[AttemptRecord | PartRecord]:
        return [attempt, *attempt.followers]

    def holds(self, attempt: AttemptRecord, claimant: str, part: int = 0) -> bool:
        found = self.parts(attempt)[part]
        is_live = attempt.state in LIVE
        return is_live and (found.state, found.claimant) == (AttemptState.CLAIMED, claimant)


@contextmanager
def histories_on(world: World) -> Iterator[type[History]]:
    History.world = world
    try:
        yield History
    finally:
        del History.world


def test_no_interleaving_breaks_an_invariant(world: World) -> None:
    with histories_on(world) as history:
        run_state_machine_as_test(history, settings=QUICK)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_long_interleaving_breaks_an_invariant(world: World) -> None:
    with histories_on(world) as history:
        run_state_machine_as_test(history, settings=settings(QUICK, max_examples=1000, stateful_step_count=80))
