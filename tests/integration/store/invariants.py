"""What must hold in the control Redis between any two calls, read from the keys themselves."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import redis

from jobs.model.pool_policy import PoolPolicy
from jobs.model.records import NodeInfo, Quarantine
from jobs.model.state import TERMINAL, JobState

LIVE = (b"leased", b"claimed")
LEVEL = 2**45  # of scores: one priority
ROUNDED = 64  # a turn is a logarithm, which may differ in its last bits


@dataclass
class Keys:
    """All of the store, by kind of key. Values of zsets are their members with scores."""

    hashes: dict[str, dict[bytes, bytes]] = field(default_factory=dict)
    zsets: dict[str, dict[bytes, float]] = field(default_factory=dict)
    sets: dict[str, set[bytes]] = field(default_factory=dict)
    strings: dict[str, bytes] = field(default_factory=dict)

    def hashes_at(self, prefix: str) -> dict[str, dict[bytes, bytes]]:
        return {key.removeprefix(prefix): value for key, value in self.hashes.items() if key.startswith(prefix)}


def read_keys(client: "redis.Redis") -> Keys:
    """Once more where keys came or went meanwhile."""
    while True:
        names: list[Any] = sorted(client.scan_iter(match="sy:*", count=10_000))
        keys = _read(client, names)
        if names == sorted(client.scan_iter(match="sy:*", count=10_000)):
            return keys


def _read(client: "redis.Redis", names: list[Any]) -> Keys:
    with client.pipeline(transaction=True) as pipe:
        for name in names:
            pipe.type(name)
        types = pipe.execute()
        readers: dict[bytes, Callable[[str], object]] = {
            b"hash": pipe.hgetall,
            b"string": pipe.get,
            b"set": pipe.smembers,
            b"zset": lambda key: pipe.zrange(key, 0, -1, withscores=True),
        }
        known = [(name.decode(), kind) for name, kind in zip(names, types, strict=True) if kind in readers]
        for name, kind in known:
            readers[kind](name)
        values = pipe.execute()
    keys = Keys()
    for (name, kind), value in zip(known, values, strict=True):
        match kind:
            case b"hash":
                keys.hashes[name] = value
            case b"set":
                keys.sets[name] = value
            case b"string":
                keys.strings[name] = value
            case _:
                keys.zsets[name] = dict(value)
    return keys


def violations(client: "redis.Redis", *, one_version: bool = True) -> list[str]:
    """Every broken rule, in words; empty when all is well. Without `one_version`, processes of one that knows no shares
    may have worked beside the others."""
    keys = read_keys(client)
    return [
        *_indexes(keys),
        *_names(keys),
        *_queues(keys),
        *_dependencies(keys),
        *_groups(keys),
        *(_shares(keys) if one_version else ()),
        *_attempts(keys),
        *_devices(keys),
        *_blocks(keys),
        *_holds(keys),
        *_bundles(keys),
        *_quotas(keys),
    ]


class Part(NamedTuple):
    """What an attempt has on one node."""

    node: str
    state: bytes
    leased: list[bytes]


def parts_of(attempt: dict[bytes, bytes]) -> list[Part]:
    ends = [b"", *(b".%d" % part for part in range(1, int(attempt.get(b"parts") or 1)))]
    return [
        Part(attempt[b"node" + end].decode(), attempt[b"state" + end], attempt[b"leased" + end].split(b","))
        for end in ends
    ]


def _class_of(job: dict[bytes, bytes]) -> str:
    return job[b"devices"].decode() + (f"x{job[b'nodes'].decode()}" if b"nodes" in job else "")


def _blocks(keys: Keys) -> Iterator[str]:
    wanted: dict[str, set[bytes]] = {}
    for name, node in keys.hashes_at("sy:node:").items():
        if block := node.get(b"block", b"").decode():
            wanted.setdefault(f"sy:block:{node[b'pool'].decode()}:{block}", set()).add(name.encode())
    found = {key: members for key, members in keys.sets.items() if key.startswith("sy:block:")}
    if found != wanted:
        yield f"blocks have the nodes {found}, and should have {wanted}"


def _indexes(keys: Keys) -> Iterator[str]:
    jobs = keys.hashes_at("sy:job:")
    indexed: dict[str, list[str]] = {}
    for name, members in keys.zsets.items():
        tenant, _, state = name.removeprefix("sy:jobs:").partition(":")
        if name.startswith("sy:jobs:") and state:
            for member in members:
                indexed.setdefault(f"{tenant}/{member.decode()}", []).append(state)
    for ref, job in jobs.items():
        if indexed.get(ref) != [job[b"state"].decode()]:
            yield f"job {ref} is {job[b'state'].decode()}, but in the indexes of {indexed.get(ref)}"
        tenant, identity = ref.split("/")
        if identity.encode() not in keys.zsets.get(f"sy:jobs:{tenant}", {}):
            yield f"job {ref} is not in its tenant's list"
    if set(indexed) != set(jobs):
        yield f"indexed, but no job: {set(indexed) - set(jobs)}"
    ended = {ref for ref, job in jobs.items() if JobState(job[b"state"].decode()) in TERMINAL}
    if {ref.decode() for ref in keys.zsets.get("sy:finished", {})} != ended:
        yield f"these have ended: {ended}, but to be archived are {keys.zsets.get('sy:finished')}"


def _names(keys: Keys) -> Iterator[str]:
    """Of the jobs that no earlier version may have submitted, or deleted."""
    if "sy:named" not in keys.strings:
        return
    since = keys.strings["sy:named"].decode()
    wanted: dict[str, set[str]] = {}
    for ref, job in keys.hashes_at("sy:job:").items():
        tenant, identity = ref.split("/")
        if identity >= since:
            name = hashlib.sha1(job[b"name"], usedforsecurity=False).hexdigest()[:8]
            wanted.setdefault(f"sy:names:{tenant}", set()).add(f"{name}{identity}")
    found = {key: set(map(bytes.decode, members)) for key, members in keys.zsets.items() if key.startswith("sy:names:")}
    for key in sorted(found | wanted):
        wrong = wanted.get(key, set()) ^ {entry for entry in found.get(key, set()) if entry[8:] >= since}
        if wrong:
            yield f"{key} has, or has not: {sorted(wrong)}"


def _queues(keys: Keys) -> Iterator[str]:
    waiting: dict[str, list[str]] = {}
    for name, members in keys.zsets.items():
        if name.startswith(("sy:queue:", "sy:parked:", "sy:standby:")) or name in (
            "sy:backoff",
            "sy:timed",
            "sy:awaiting",
        ):
            for member in members:
                waiting.setdefault(member.decode(), []).append(name)
    jobs = keys.hashes_at("sy:job:")
    for ref, job in jobs.items():
        queue = f"sy:queue:{job[b'pool'].decode()}:{_class_of(job)}"
        places = waiting.pop(ref, [])
        if job[b"state"] == JobState.QUEUED.encode():
            parked = f"sy:parked:{job.get(b'parked', b'').decode()}"
            special = {
                b"backing_off": ["sy:backoff"],
                b"waiting_for_time": ["sy:timed"],
                b"waiting_for_jobs": ["sy:awaiting"],
                b"waiting_for_turn": [f"sy:standby:{job.get(b'group', b'').decode()}"],
                b"suspended": ["sy:awaiting"] if b"unmet" in job else [],
                b"waiting_for_quota": [parked],
            }
            if places != special.get(job[b"reason"], [queue]):
                yield f"job {ref} waits in {places} and says {job[b'reason'].decode()}"
            says = (job[b"reason"] == b"waiting_for_quota", b"parked" in job)
            if says != (places == [parked],) * 2:
                yield f"job {ref} waits in {places}, and says {job[b'reason'].decode()} and {job.get(b'parked')!r}"
            due = keys.zsets["sy:backoff"][ref.encode()] if places == ["sy:backoff"] else None
            if (int(job[b"retry_at"]) if job.get(b"retry_at") else None) != due:
                yield f"job {ref} may start again at {due}, and says {job.get(b'retry_at', b'').decode()}"
        elif job.get(b"retry_at"):
            yield f"job {ref} does not wait, and says {job[b'retry_at'].decode()}"
        elif places:
            yield f"job {ref} is {job[b'state'].decode()}, but waits in {places}"
    if waiting:
        yield f"these wait, but are no jobs: {waiting}"
    for name in keys.sets:
        if name.startswith(("sy:queue:", "sy:gangs:")):
            prefix = f"sy:queue:{name.split(':', 2)[2]}:"
            waiting_classes = {queue.removeprefix(prefix) for queue in keys.zsets if queue.startswith(prefix)}
            classes = {each for each in waiting_classes if ("x" in each) == name.startswith("sy:gangs:")}
            if {member.decode() for member in keys.sets[name]} != classes:
                yield f"{name} lists other classes than wait: {classes}"


def _dependencies(keys: Keys) -> Iterator[str]:
    """A job that waits is known to all that it waits for, and each of those can still end."""
    jobs = keys.hashes_at("sy:job:")
    wanted: dict[str, set[str]] = {}
    for ref, job in jobs.items():
        if b"awaits" not in job:
            if job[b"reason"] == b"waiting_for_jobs" or b"unmet" in job:
                yield f"job {ref} waits for no job, and says {job[b'reason'].decode()}, {job.get(b'unmet')!r}"
            continue
        if job[b"reason"] not in (b"waiting_for_jobs", b"suspended") or job[b"state"] != JobState.QUEUED.encode():
            yield f"job {ref} waits for {job[b'awaits'].decode()}, and says {job[b'reason'].decode()}"
        for awaited in job[b"awaits"].decode().split():
            wanted.setdefault(f"{ref.split('/')[0]}/{awaited}", set()).add(ref)
    for awaited in wanted:
        if JobState(jobs[awaited][b"state"].decode()) in TERMINAL:
            yield f"{awaited} has ended, and {wanted[awaited]} were not told"
    prefix = "sy:needed:"
    found = {
        name.removeprefix(prefix): set(map(bytes.decode, members))
        for name, members in keys.sets.items()
        if name.startswith(prefix)
    }
    if found != wanted:
        yield f"jobs are needed by {found}, and should be by {wanted}"


def _groups(keys: Keys) -> Iterator[str]:
    """Each job of a group is in it, under a number of its own; only those have devices whose turn it is, and those that
    wait for one are looked at."""
    jobs = keys.hashes_at("sy:job:")
    members: dict[str, dict[str, str]] = {}
    for ref, job in jobs.items():
        if b"group" in job:
            members.setdefault(job[b"group"].decode(), {})[job[b"child"].decode()] = ref
    groups = keys.hashes_at("sy:group:")
    if set(groups) != set(members):
        yield f"there are the groups {sorted(groups)}, and jobs of {sorted(members)}"
    for group, children in members.items():
        tenant, identity = group.split("/")
        if identity.encode() not in keys.zsets.get(f"sy:groups:{tenant}:{groups[group][b'kind'].decode()}", {}):
            yield f"group {group} is in no list"
        known = {
            number.decode(): f"{tenant}/{job.decode()}" for number, job in keys.hashes[f"sy:children:{group}"].items()
        }
        if not children.items() <= known.items():
            yield f"group {group} has the jobs {children}, and knows {known}"
        listed = {f"{tenant}/{job.decode()}" for job in keys.zsets.get(f"sy:group_jobs:{group}", {})}
        if listed != set(children.values()):
            yield f"group {group} has the jobs {children}, and lists {listed}"
        active = {ref.decode() for ref in keys.sets.get(f"sy:active:{group}", set())}
        turned = {ref for ref in listed if JobState(jobs[ref][b"state"].decode()) not in TERMINAL} - {
            ref for ref in listed if b"turn" in jobs[ref]
        }
        if active != turned or len(active) > int(groups[group][b"max_concurrent"]):
            yield f"group {group}: it is the turn of {active}, and should be of {turned}"
        waits = f"sy:standby:{group}" in keys.zsets
        if waits and group.encode() not in keys.zsets.get("sy:turns_due", {}):
            yield f"group {group}: jobs wait for a turn, and nobody looks at them"
    if not {group.decode() for group in keys.zsets.get("sy:turns_due", {})} <= set(groups):
        yield f"turns are due in groups that are gone: {keys.zsets['sy:turns_due']}"
    searches = {ref.decode() for ref in keys.sets.get("sy:searches", set())}
    if searches != {group for group, fields in groups.items() if b"open" in fields}:
        yield f"groups {searches} are listed as open"
    for group, fields in groups.items():
        if b"open" in fields and len(keys.hashes[f"sy:children:{group}"]) >= int(fields[b"open"]):
            yield f"group {group} has all of its jobs, and is open"
    for prefix in ("sy:children:", "sy:group_jobs:", "sy:active:", "sy:standby:"):
        kept = {
            name.removeprefix(prefix) for name in (*keys.hashes, *keys.zsets, *keys.sets) if name.startswith(prefix)
        }
        if not kept <= set(groups):
            yield f"{prefix} is left of groups that are gone: {kept - set(groups)}"


def _on_devices(keys: Keys) -> set[str]:
    """Live attempts, without those that have handed their devices back before their end."""
    attempts = keys.hashes_at("sy:attempt:")
    live = {ref.decode() for ref in keys.sets.get("sy:leases", set())}
    return {ref for ref in live if b"carrying" not in attempts[ref]}


def _shares(keys: Keys) -> Iterator[str]:
    """Nothing here was made by an earlier version, which knows no shares."""
    jobs = keys.hashes_at("sy:job:")
    leased: Counter[tuple[str, str]] = Counter()
    for attempt in _on_devices(keys):
        tenant, identity, _ = attempt.split("/")
        job = jobs[f"{tenant}/{identity}"]
        leased[job[b"pool"].decode(), tenant] += int(job[b"devices"]) * int(job.get(b"nodes", 1))
    accounts = {
        (pool, tenant.decode()): text.split()
        for pool, found in keys.hashes_at("sy:use:").items()
        for tenant, text in found.items()
    }
    charged = Counter({key: int(devices) for key, (_, _, devices) in accounts.items()})
    if leased != charged:
        yield f"tenants have {leased} devices, and are charged for {charged}"
    placed = {
        attempt.decode() for name, found in keys.zsets.items() if name.startswith("sy:placed:") for attempt in found
    }
    if placed != _on_devices(keys):
        yield f"by priority these are on devices: {placed}, but {_on_devices(keys)} have leased some"
    weights = keys.hashes.get("sy:weights", {})
    queues: dict[str, dict[bytes, float]] = {}
    for name, members in keys.zsets.items():
        if not name.startswith("sy:waiting:"):
            continue
        pool, rank_class, tenant = name.removeprefix("sy:waiting:").split(":")
        queues.setdefault(f"sy:queue:{pool}:{rank_class}", {}).update(members)
        if not all(ref.startswith(tenant.encode() + b"/") for ref in members):
            yield f"{name} has jobs of another tenant: {members}"
        used, at, devices = map(float, accounts.get((pool, tenant), (0, 0, 0)))
        weight = float(weights.get(tenant.encode(), 1))
        turn = min(members.values()) // LEVEL * LEVEL + _rank((used + 60 * devices) / weight, at)
        written = keys.zsets.get(f"sy:turns:{pool}:{rank_class}", {}).get(tenant.encode())
        if written is None or written > turn + ROUNDED:
            yield f"it is the turn of {tenant} in class {rank_class} at {turn}, not at {written}"
    if queues != {name: members for name, members in keys.zsets.items() if name.startswith("sy:queue:")}:
        yield f"tenants wait in {queues}"


def _rank(used_for_weight: float, at: float) -> int:
    if used_for_weight <= 0:
        return 0
    return int(max(1.0, (math.log2(used_for_weight) + at / 86_400e6) * 2**29))


def _attempts(keys: Keys) -> Iterator[str]:
    attempts = keys.hashes_at("sy:attempt:")
    live = {ref for ref, attempt in attempts.items() if attempt[b"state"] in LIVE}
    leases = {ref.decode() for ref in keys.sets.get("sy:leases", set())}
    if live != leases:
        yield f"live attempts {live}, but leases {leases}"
    hinted = {f"{part.node} {ref}" for ref in live for part in parts_of(attempts[ref]) if part.state == b"leased"}
    if hinted != {member.decode() for member in keys.zsets.get("sy:outbox", {})}:
        yield f"unclaimed attempts {hinted}, but hints {keys.zsets.get('sy:outbox')}"
    for ref, job in keys.hashes_at("sy:job:").items():
        mine = {n for n in range(1, int(job[b"attempt"]) + 1) if f"{ref}/{n}" in live}
        on_devices = job[b"state"] in (b"starting", b"running")
        if mine != ({int(job[b"attempt"])} if on_devices else set()):
            yield f"job {ref} is {job[b'state'].decode()} with attempt {job[b'attempt'].decode()}, live are {mine}"


def _devices(keys: Keys) -> Iterator[str]:
    attempts = keys.hashes_at("sy:attempt:")
    leased: dict[tuple[str, int], str] = {}
    for ref in _on_devices(keys):
        parts = parts_of(attempts[ref])
        if len({part.node for part in parts}) != len(parts):
            yield f"attempt {ref} has two parts on one node: {parts}"
        for part in parts:
            for device in part.leased:
                slot = (part.node, int(device))
                if slot in leased:
                    yield f"device {slot} is in two live leases: {leased[slot]} and {ref}"
                leased[slot] = ref
                if keys.hashes.get(f"sy:held:{slot[0]}", {}).get(device) != ref.encode():
                    yield f"device {slot} is leased to {ref}, but not held for it"
    for name, node in keys.hashes_at("sy:node:").items():
        held = {int(device) for device in keys.hashes.get(f"sy:held:{name}", {})}
        bad = {int(device) for device in keys.hashes.get(f"sy:quarantine:{name}", {})}
        free = {int(device) for device in keys.zsets.get(f"sy:free:{name}", {})}
        by_hand = {
            int(device)
            for device, entry in keys.hashes.get(f"sy:quarantine:{name}", {}).items()
            if Quarantine.from_entry(entry).by == "operator"
        }
        if held & free or held & (bad - by_hand) or free & bad:
            yield f"node {name}: a device is at two places: held {held}, free {free}, quarantined {bad}"
        every = set(range(int(node[b"count"])))
        if (held | free | bad) & every != every or not free <= every:
            yield f"node {name}: held {held}, free {free}, quarantined {bad} are not its {len(every)} devices"
        index = keys.zsets.get(f"sy:pool:{node[b'pool'].decode()}:free", {})
        closed = any(node.get(field) == b"1" for field in (b"stopping", b"draining", b"leaving"))
        low = bool(node.get(b"low")) and node[b"low_said_by"] == node[b"instance"]
        takes_work = node[b"alive"] == b"1" and not closed and not low and _has_box(keys, node)
        expected = len(free) if takes_work else None
        if index.get(name.encode()) != expected:
            yield f"node {name}: the index says {index.get(name.encode())} free, and it has {expected}"
        for other, members in keys.zsets.items():
            elsewhere = other.startswith("sy:pool:") and not other.startswith(f"sy:pool:{node[b'pool'].decode()}:")
            if elsewhere and name.encode() in members:
                yield f"node {name} is still in {other}"


def _has_box(keys: Keys, node: dict[bytes, bytes]) -> bool:
    """Whether a node has the box that the policy of its pool demands."""
    policy = keys.hashes.get("sy:policies", {}).get(node[b"pool"])
    level = msgspec.json.decode(node[b"info"], type=NodeInfo).box_level
    return policy is None or msgspec.json.decode(policy, type=PoolPolicy).accepts_box(level)


def _holds(keys: Keys) -> Iterator[str]:
    for pool, hold in keys.hashes_at("sy:hold:").items():
        kept = len(hold[b"node"].split())
        wanted = hold[b"devices"].decode() + (f"x{kept}" if kept > 1 else "")
        if hold[b"ref"] not in keys.zsets.get(f"sy:queue:{pool}:{wanted}", {}):
            yield f"{kept} nodes of pool {pool} are kept for {hold[b'ref'].decode()}, which does not wait for so many"


def _bundles(keys: Keys) -> Iterator[str]:
    bundles = keys.hashes_at("sy:bundle:")
    needed = Counter(
        f"{ref.split('/')[0]}/{job[b'bundle'].decode()}"
        for ref, job in keys.hashes_at("sy:job:").items()
        if job.get(b"bundle")
    )
    counted = Counter({ref: int(bundle[b"jobs"]) for ref, bundle in bundles.items()})
    if needed != counted:
        yield f"jobs need {needed}, but bundles count {counted}"
    resting = {ref.decode() for ref in keys.zsets.get("sy:idle_bundles", {})}
    if resting != {ref for ref in bundles if not counted[ref]}:
        yield f"bundles {resting} are said to rest, and jobs are counted so: {counted}"
    held: Counter[str] = Counter()
    for ref, bundle in bundles.items():
        held[ref.split("/")[0]] += int(bundle[b"bytes"])
    prefix = "sy:bundle_bytes:"
    written = {name.removeprefix(prefix): int(value) for name, value in keys.strings.items() if name.startswith(prefix)}
    if held != Counter(written):
        yield f"bundles have {held} bytes, but {written} are written down"


def _quotas(keys: Keys) -> Iterator[str]:
    """What accounts with a quota use, counted again."""
    quotas, usage = keys.hashes.get("sy:quotas", {}), keys.hashes_at("sy:usage:")
    if {account.decode() for account in quotas} != set(usage):
        yield f"counted are {sorted(usage)}, but quotas have {sorted(quotas)}"
    parked = {account.decode() for account in keys.sets.get("sy:parked", set())}
    if parked != {name.removeprefix("sy:parked:") for name in keys.zsets if name.startswith("sy:parked:")}:
        yield f"jobs are parked for other accounts than {parked}"
    for account, counted in usage.items():
        tenant, _, token = account.partition("/")
        found = dict.fromkeys((b"jobs", b"running", b"devices", b"spec_bytes"), 0)
        for ref, job in keys.hashes_at("sy:job:").items():
            if ref.split("/")[0] == tenant and (not token or job.get(b"token", b"").decode() == token):
                runs = job[b"state"] in (b"starting", b"running")
                found[b"jobs"] += JobState(job[b"state"].decode()) not in TERMINAL
                found[b"running"] += runs
                found[b"devices"] += runs * int(job[b"devices"]) * int(job.get(b"nodes") or 1)
                found[b"spec_bytes"] += len(keys.strings.get(f"sy:spec:{ref}", b""))
        if {name: int(counted.get(name) or 0) for name in found} != found:
            yield f"{account} uses {found}, but is counted as {counted}"
