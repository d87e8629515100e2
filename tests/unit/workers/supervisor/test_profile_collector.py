"""What becomes of a profile: traces, and reasons why there are none."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.files import paths, profiles
from jobs.protocol.profiles import BEGIN_SECONDS, RECORD_SECONDS, SEND_SECONDS
from jobs.protocol.records import ProfileBegin, ProfileEnd, ProfilePart
from jobs.store import ProfileRequest
from shardyard.contract.responses import ProfileView
from tests.support.samples.attempts import a_launch
from workers.supervisor import profile_collector
from workers.supervisor.profile_collector import ProfileCollector


@dataclass
class Asking:
    """A lease that asks for profiles."""

    profile_request: ProfileRequest | None = None
    recorded: list[tuple[int, str]] = field(default_factory=list)

    def record_profile(self, number: int, state: str) -> None:
        self.recorded.append((number, state))


@dataclass
class Site:
    collector: ProfileCollector
    lease: Asking
    attempt: Path
    said: list[str]
    shown: list[tuple[int, int]]

    def ask(self, number: int = 1, steps: int = 10, now: float = 0.0) -> None:
        self.lease.profile_request = ProfileRequest("asked", number, steps, 1_700_000_000_000_000)
        self.collector.on_tick(now)

    @property
    def found(self) -> ProfileView:
        return profiles.list_profiles(self.attempt)[-1]

    @property
    def errors(self) -> list[str | None]:
        return [rank.error for rank in self.found.ranks]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    launch, lease, said = a_launch(tmp_path / "state", devices=2), Asking(), list[str]()
    shown: list[tuple[int, int]] = []
    ranks: Any = [SimpleNamespace(number=number, is_alive=True, show_profile=_keep_in(shown)) for number in range(2)]
    collector = ProfileCollector(launch, ranks, lease, said.append)  # type: ignore[arg-type]
    one = launch.attempt
    attempt = paths.attempt_dir(launch.storage, one.tenant, one.job, one.number)
    return Site(collector, lease, attempt, said, shown)


def _keep_in(shown: list[tuple[int, int]]) -> Callable[[int, int], None]:
    return lambda number, steps: shown.append((number, steps))


def test_what_ranks_send_becomes_files(site: Site) -> None:
    site.ask(steps=10)
    assert (site.shown, site.lease.recorded) == ([(1, 10)] * 2, [(1, "recording")])
    for rank in (1, 0):
        site.collector.on_record(rank, ProfileBegin(1))
        site.collector.on_record(rank, ProfilePart(1, b"ab"))
        site.collector.on_record(rank, ProfilePart(1, bytes([rank])))
        site.collector.on_record(rank, ProfileEnd(1, 10, 0.5))
    assert site.lease.recorded[-1] == (1, "done")
    assert site.shown[-2:] == [(0, 0)] * 2
    assert (site.found.state, site.found.steps) == ("finished", 10)
    assert [(one.path, one.bytes, one.steps, one.error) for one in site.found.ranks] == [
        ("profiles/1/rank-0.json.gz", 3, 10, None),
        ("profiles/1/rank-1.json.gz", 3, 10, None),
    ]
    assert (site.attempt / "profiles/1/rank-1.json.gz").read_bytes() == b"ab\x01"
    site.collector.on_tick(1.0)  # the same request is not begun again
    site.ask(2, now=2.0)
    assert site.lease.recorded[-1] == (2, "recording")


def test_a_rank_that_does_not_step_answers_so(site: Site) -> None:
    site.ask()
    site.collector.on_record(0, ProfileBegin(1))
    site.collector.on_tick(BEGIN_SECONDS + 1)
    site.collector.on_record(0, ProfilePart(1, b"trace"))
    site.collector.on_record(0, ProfileEnd(1, 10, 0.5))
    assert site.errors == [None, profile_collector.NO_STEP]
    site.collector.on_record(1, ProfileBegin(1))  # too late: nothing is open


def test_a_rank_that_does_not_finish_answers_so(site: Site) -> None:
    site.ask()
    for rank in (0, 1):
        site.collector.on_record(rank, ProfileBegin(1))
        site.collector.on_record(rank, ProfilePart(1, b"half a trace"))
    site.collector.on_tick(BEGIN_SECONDS + RECORD_SECONDS + SEND_SECONDS + 1)
    assert site.errors == [profile_collector.NOT_SENT] * 2
    assert [file.name for file in (site.attempt / "profiles/1").iterdir()] == ["profile.json"]


def test_a_rank_that_ends_or_sends_too_much_answers_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_collector, "MAX_TRACE_BYTES", 4)
    site.ask()
    site.collector.on_record(0, ProfilePart(1, b"12345"))
    site.collector.close()
    assert site.errors == [profile_collector.TOO_LARGE, profile_collector.RANK_ENDED]


def test_a_rank_without_a_trace_says_why(site: Site) -> None:
    site.ask()
    site.collector.on_record(0, ProfileEnd(1, 0, 0.0, "no room"))
    site.collector.on_record(1, ProfileEnd(1, 3, 0.1))
    assert site.errors == ["no room", "the rank sent no trace"]
    assert "profile 1, rank 0: no trace: no room" in site.said
