"""Who gets which devices, and when."""

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jobs import store
from jobs.model.records import QueueView
from jobs.model.state import JobState, StateReason
from jobs.store import AttemptId
from jobs.store.client import RedisStore
from tests.integration.store.invariants import violations
from tests.integration.store.world import NEVER, TENANT, World, a_spec

pytestmark = pytest.mark.integration

DEADLINE = 60.0


# -- order -----------------------------------------------------------------------------------------


def test_higher_priority_goes_first_then_age(world: World) -> None:
    world.node(devices=1)
    low, first, second, high = world.submit(priority=-100), world.submit(), world.submit(), world.submit(priority=100)
    started: list[str] = []
    for _ in range(4):
        (job,) = world.dispatch()
        started.append(job)
        world.finish_and_release(world.claim(job))
    assert started == [high, first, second, low]


def test_a_job_wakes_a_dispatch_only_where_a_node_has_room_for_it(world: World) -> None:
    ears: Any = world.redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    ears.subscribe("sy:wake")

    def woken(seconds: float = 60.0) -> bool:
        ends, heard = time.monotonic() + seconds, False
        while not heard and time.monotonic() < ends:
            heard = ears.get_message(timeout=0.05) is not None
        while ears.get_message(timeout=0.05):  # all there is, so that the next look is at new ones
            pass
        return heard

    world.node(devices=2)
    assert woken()  # by the node
    job = world.submit(2)
    assert woken()
    world.dispatch()
    attempt = world.claim(job)
    world.submit(1)
    assert not woken(0.2)
    world.finish_and_release(attempt)
    assert woken()
    ears.close()


def test_order_of_arrival_holds_across_classes_and_tenants(world: World) -> None:
    world.node(devices=4)
    big = world.submit(3)
    world.run(store.submit("other", "x", a_spec(2)))
    small = world.submit(1)
    assert world.run(store.dispatch(NEVER)).created == (AttemptId(TENANT, big, 1), AttemptId(TENANT, small, 1))
    assert world.run(store.read_job("other", "x")).record.state is JobState.QUEUED


def test_a_retried_job_keeps_its_place_in_the_queue(world: World) -> None:
    world.node(devices=1)
    first = world.running(retries=1)
    later = world.submit()
    world.finish(first, StateReason.RANK_FAILED)
    world.release(first)
    assert world.dispatch() == [first.job]
    assert world.state(later) is JobState.QUEUED


def test_a_job_runs_on_one_node_and_on_the_one_it_fits_most_tightly(world: World) -> None:
    world.node("large", devices=4)
    world.node("small", devices=2)
    two, three = world.submit(2), world.submit(3)
    world.dispatch()
    assert (world.job(two).node, world.job(three).node) == ("small", "large")
    split = world.submit(2)  # one device is free on "large", none on "small"
    world.finish_and_release(world.claim(two))
    assert world.dispatch() == [split]
    assert world.job(split).node == "small"


def test_one_call_starts_at_most_its_share_and_the_next_goes_on(world: World) -> None:
    world.node(devices=40)
    for _ in range(40):
        world.submit()
    assert [len(world.dispatch()) for _ in range(3)] == [store.MAX_DISPATCHED, 40 - store.MAX_DISPATCHED, 0]


def test_pools_do_not_share_devices(world: World) -> None:
    world.node("n1", devices=1, pool="a")
    world.node("n2", devices=1, pool="b")
    in_a, also_a, in_b = world.submit(pool="a"), world.submit(pool="a"), world.submit(pool="b")
    assert sorted(world.dispatch()) == [in_a, in_b]
    assert world.state(also_a) is JobState.QUEUED
    assert world.run(store.read_fleet()).queued == {"a": 1, "b": 0}


def test_the_queue_position_counts_every_job_that_goes_before(world: World) -> None:
    world.node(devices=4)
    world.node("n2", devices=2)
    runs = world.running(3)
    world.submit(4)
    world.submit(2, priority=-1)
    last = world.submit(4, priority=-2)
    view = world.run(store.read_job(TENANT, last)).queue
    assert view == QueueView(ahead=2, free=3, largest_gap=2, live_nodes=2, total=6)
    assert world.run(store.read_job(TENANT, runs.job)).queue is None


def test_a_waiting_job_counts_the_room_of_the_nodes_of_its_pool_that_take_work(world: World) -> None:
    for name, devices in {"n1": 4, "n2": 4, "n3": 2, "full": 1, "drained": 8}.items():
        world.node(name, devices=devices)
    world.node("elsewhere", devices=16, pool="b")
    world.running(1)  # on the node where it leaves the smallest gap
    world.run(store.drain_node("drained"))
    last = world.submit(3)
    view = world.run(store.read_job(TENANT, last)).queue
    assert view == QueueView(ahead=0, free=10, largest_gap=4, live_nodes=4, total=11)


# -- holding a node for a big job ------------------------------------------------------------------


def test_small_jobs_pass_a_big_one_that_has_not_waited_long(world: World) -> None:
    world.node(devices=4)
    world.running(1)
    big, small = world.submit(4), world.submit(1)
    assert world.dispatch(hold=NEVER) == [small]
    assert world.state(big) is JobState.QUEUED


def test_a_node_is_kept_for_a_big_job_that_has_waited(world: World) -> None:
    world.node(devices=4)
    blocker = world.running(1)
    big, small = world.submit(4), world.submit(1)
    assert world.dispatch(hold=0) == []
    world.finish_and_release(blocker)
    assert world.dispatch(hold=0) == [big]
    world.finish_and_release(world.claim(big))
    assert world.dispatch(hold=0) == [small]


def test_other_nodes_still_serve_small_jobs_while_one_is_kept(world: World) -> None:
    world.node("n1", devices=4)
    blocker = world.running(1)
    world.node("n2", devices=2)
    world.submit(4)
    smalls = [world.submit(1) for _ in range(3)]
    assert world.dispatch(hold=0) == smalls[:2]
    assert {world.job(small).node for small in smalls[:2]} == {"n2"}
    assert world.job(blocker.job).node == "n1"


def test_the_kept_node_is_given_up_when_its_job_is_cancelled(world: World) -> None:
    world.node(devices=4)
    world.running(1)
    big, small = world.submit(4), world.submit(1)
    assert world.dispatch(hold=0) == []
    world.run(store.cancel(TENANT, big))
    assert world.dispatch(hold=0) == [small]


def test_another_node_is_kept_when_the_first_goes_down(world: World) -> None:
    world.node("n1", devices=4)
    world.running(1)
    big = world.submit(4)
    assert world.dispatch(hold=0) == []
    world.run(store.take_down_node("n1", None))
    world.node("n2", devices=4)
    small = world.submit(1)
    assert world.dispatch(hold=0) == [big]
    assert world.job(big).node == "n2"
    assert world.state(small) is JobState.QUEUED
    world.node("n1", devices=4, instance="i2")
    assert world.dispatch(hold=0) == [small]


def test_a_node_that_comes_back_smaller_is_not_kept_for_what_no_longer_fits(world: World) -> None:
    world.node(devices=4)
    blocker = world.running(1)
    big, small = world.submit(4), world.submit(1)
    assert world.dispatch(hold=0) == []
    world.node(devices=2, instance="i2")
    assert world.dispatch(hold=0) == [small]
    world.finish_and_release(blocker)
    assert world.dispatch(hold=0) == []
    assert world.state(big) is JobState.QUEUED


def test_a_node_with_too_many_devices_in_quarantine_is_not_kept(world: World) -> None:
    world.node(devices=4)
    broken = world.running(1)
    world.submit(4)
    small = world.submit(1)
    assert world.dispatch(hold=0) == []
    world.finish(broken)
    world.release(broken, {0: "a process would not die"})
    assert world.dispatch(hold=0) == [small]


def test_a_more_urgent_job_of_the_same_size_takes_the_kept_node_first(world: World) -> None:
    """Otherwise neither could start: only the head of a class is looked at, and it could not use the kept node."""
    world.node(devices=4)
    blocker = world.running(1)
    patient = world.submit(4)
    assert world.dispatch(hold=0) == []
    urgent = world.submit(4, priority=10)
    world.finish_and_release(blocker)
    assert world.dispatch(hold=0) == [urgent]
    world.submit(1)
    world.finish_and_release(world.claim(urgent))
    assert world.dispatch(hold=0) == [patient]


def test_a_more_urgent_small_job_may_use_the_kept_node(world: World) -> None:
    world.node(devices=4)
    world.running(1)
    world.submit(4)
    assert world.dispatch(hold=0) == []
    urgent, patient = world.submit(1, priority=10), world.submit(1)
    assert world.dispatch(hold=0) == [urgent]
    assert world.state(patient) is JobState.QUEUED


def test_a_clock_that_is_set_back_does_not_keep_a_big_job_from_holding(world: World) -> None:
    world.node(devices=4)
    blocker = world.running(1)
    big = world.submit(4)
    world.redis.hincrby(f"sy:job:{TENANT}/{big}", "created", 86_400 * 10**6)
    world.submit(1)
    assert world.dispatch(hold=NEVER) == []
    world.finish_and_release(blocker)
    assert world.dispatch(hold=NEVER) == [big]


# -- many at once ----------------------------------------------------------------------------------


class Ledger:
    """Who uses which device, as the callers see it: the judge of two dispatchers that run at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._used: dict[tuple[str, int], AttemptId] = {}
        self.finished: list[str] = []
        self.clashes: list[str] = []

    def take(self, attempt: AttemptId, slots: list[tuple[str, int]]) -> None:
        with self._lock:
            self.clashes += [f"{slot}: {self._used[slot]} and {attempt}" for slot in slots if slot in self._used]
            self._used |= dict.fromkeys(slots, attempt)

    def give_back(self, attempt: AttemptId, slots: list[tuple[str, int]]) -> None:
        with self._lock:
            for slot in slots:
                del self._used[slot]
            self.finished.append(attempt.job)


def dispatch_and_run(url: str, barrier: threading.Barrier, ledger: Ledger, jobs: int, seed: int) -> None:
    """Dispatches until every job has run; ends what it started itself, in random order."""
    control, mine, dice = RedisStore.from_url(url), [], random.Random(seed)
    name = f"dispatcher-{seed}"
    barrier.wait(DEADLINE)
    while len(ledger.finished) < jobs and not ledger.clashes:
        for attempt in control.run(store.dispatch(NEVER)).created:
            record = control.run(store.read_job(attempt.tenant, attempt.job)).record
            slots = [(str(record.node), device) for device in record.leased]
            ledger.take(attempt, slots)
            mine.append((attempt, str(record.node), slots))
        if not mine:
            continue
        attempt, node, slots = mine.pop(dice.randrange(len(mine)))
        assert control.run(store.claim(attempt, name, node)).granted
        assert control.run(store.finish(attempt, name, StateReason.COMPLETED, ""))
        ledger.give_back(attempt, slots)
        assert control.run(store.release(node, attempt, {})) == len(slots)
    control.close()


def test_two_dispatchers_at_once_never_lease_a_device_twice(world: World, server_url: str) -> None:
    for number, devices in enumerate((8, 3, 5)):
        world.node(f"n{number}", devices)
    dice = random.Random(0)
    jobs = [world.submit(dice.choice((1, 1, 2, 3, 5)), priority=dice.randint(-2, 2)) for _ in range(1000)]
    ledger, barrier = Ledger(), threading.Barrier(2)
    threads = [
        threading.Thread(target=dispatch_and_run, args=(server_url, barrier, ledger, len(jobs), seed))
        for seed in (1, 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert ledger.clashes == []
    assert sorted(ledger.finished) == jobs
    assert {world.job(job).attempt for job in jobs} == {1}
    assert world.redis.zrange("sy:pool:default:free", 0, -1, withscores=True) == [(b"n1", 3), (b"n2", 5), (b"n0", 8)]


def test_a_thousand_jobs_and_sixteen_dispatchers_fill_the_devices_once(world: World, server_url: str) -> None:
    world.node(devices=64)
    for _ in range(1000):
        world.submit()
    barrier = threading.Barrier(16)
    started: list[AttemptId] = []

    def once() -> None:
        control = RedisStore.from_url(server_url)
        barrier.wait(DEADLINE)
        attempts = control.run(store.dispatch(NEVER)).created
        started.extend(attempts)
        control.close()

    threads = [threading.Thread(target=once) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert len(set(started)) == len(started) == 64
    assert violations(world.redis) == []


def commands_of_one_dispatch(world: World) -> int:
    """How many commands a dispatch runs that starts one job; a count, since times differ between machines."""
    world.redis.config_resetstat()
    (job,) = world.dispatch()
    stats = world.redis.info("commandstats")
    world.finish_and_release(world.claim(job))
    return sum(stat["calls"] for name, stat in stats.items() if name != "cmdstat_ping")  # the client checks its health


def queue_many(world: World, first: int, last: int) -> Iterator[int]:
    """Queues jobs up to `last` in steps of 500 a round trip."""
    one = a_spec()
    for start in range(first, last, 500):
        with world.redis.pipeline(transaction=False) as pipe:
            for number in range(start, min(start + 500, last)):
                call = store.submit(TENANT, f"many-{number:07d}", one)
                pipe.execute_command(*call.command)  # type: ignore[no-untyped-call]
            pipe.execute()
        yield start


@pytest.mark.parametrize("many", [1_000, 10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_what_a_dispatch_does_is_independent_of_the_length_of_the_queue(world: World, many: int) -> None:
    world.node(devices=1)
    assert world.dispatch() == [], "the library is loaded from here on"
    list(queue_many(world, 0, 10))
    commands_of_one_dispatch(world)  # the tenant has used something from here on
    few = commands_of_one_dispatch(world)
    list(queue_many(world, 10, many))
    assert commands_of_one_dispatch(world) == few
    world.redis.flushall()
