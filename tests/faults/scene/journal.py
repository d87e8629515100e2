"""The whole history of the control Redis, from its append-only file: every change, in order, also across its deaths.

The file holds what the scripts did, command by command. A test's server must not rewrite it (`SERVER_OPTIONS`).
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.inject.resp import end_of, words

#: Fields of parts but the leader's have the part's number behind their names.
_CLAIMANT = re.compile(r"claimant(\.(?P<part>\d+))?")
SERVER_OPTIONS = {"appendonly": "yes", "appendfsync": "always", "auto-aof-rewrite-percentage": "0"}


@dataclass
class AttemptPast:
    """One attempt: its states in order, everybody who claimed a part of it, by the number of the part, and the reasons
    that were written."""

    states: list[str] = field(default_factory=list)
    claimants: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    reasons: list[str] = field(default_factory=list)


@dataclass
class Past:
    """`jobs` and `attempts` by their refs. `doubles` are moments at which a job had two live attempts."""

    jobs: dict[str, list[str]] = field(default_factory=dict)
    attempts: dict[str, AttemptPast] = field(default_factory=dict)
    doubles: list[str] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)


def read_past(redis_directory: Path) -> Past:
    """What has happened in a server whose data are in `redis_directory`."""
    past, live = Past(), dict[str, str]()
    for command in _commands(redis_directory):
        name, *rest = (word.decode(errors="replace") for word in words(command))
        match name.upper():
            case "HSET" | "HMSET":
                _set(past, live, rest[0], dict(zip(rest[1::2], rest[2::2], strict=True)))
            case "DEL" | "UNLINK":
                past.deleted |= {key.removeprefix("sy:job:") for key in rest if key.startswith("sy:job:")}
    return past


def _set(past: Past, live: dict[str, str], key: str, fields: Mapping[str, str]) -> None:
    if key.startswith("sy:job:") and "state" in fields:
        states = past.jobs.setdefault(key.removeprefix("sy:job:"), [])
        if states[-1:] != [fields["state"]]:
            states.append(fields["state"])
    if key.startswith("sy:attempt:"):
        ref = key.removeprefix("sy:attempt:")
        _set_attempt(past.attempts.setdefault(ref, AttemptPast()), fields)
        _follow_lease(past, live, ref, fields.get("state", ""))


def _set_attempt(attempt: AttemptPast, fields: Mapping[str, str]) -> None:
    if "state" in fields and attempt.states[-1:] != [fields["state"]]:
        attempt.states.append(fields["state"])
    for name, claimant in fields.items():
        if claimant and (found := _CLAIMANT.fullmatch(name)):
            attempt.claimants[int(found["part"] or 0)].add(claimant)
    if fields.get("reason") and not ("created" in fields and attempt.reasons == [fields["reason"]]):
        # An upgrade that writes the whole record in its own shape ends nothing again.
        attempt.reasons.append(fields["reason"])


def _follow_lease(past: Past, live: dict[str, str], ref: str, state: str) -> None:
    job = ref.rpartition("/")[0]
    if state == "leased":
        if job in live:
            past.doubles.append(f"{ref} was leased while {live[job]} was live")
        live[job] = ref
    elif state == "ended" and live.get(job) == ref:
        del live[job]


def _commands(redis_directory: Path) -> Iterator[bytes]:
    """Every complete command; the last one may be torn by a kill."""
    parts = (redis_directory / "appendonlydir").glob("*.incr.aof")
    for path in sorted(parts, key=lambda path: int(re.findall(r"\.(\d+)\.incr", path.name)[0])):
        data, at = path.read_bytes(), 0
        while at < len(data) and data[at : at + 1] in (b"*", b"#"):
            end = data.index(b"\r\n", at) + 2 if data[at : at + 1] == b"#" else end_of(data, at)
            if end is None:
                break
            if data[at : at + 1] == b"*":
                yield data[at:end]
            at = end
