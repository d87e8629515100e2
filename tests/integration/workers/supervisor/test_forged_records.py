"""Programs that write records of their own to the supervisor, of every kind: it stays small, and their jobs end."""

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from jobs.model.records import JobRecord
from jobs.model.state import JobState, StateReason
from jobs.protocol.packets import AnyRecord
from tests.integration.workers.service import Service, eventually

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
FORGE = (Path(__file__).parents[1] / "scripts" / "forge.txt").read_text()
KINDS = re.findall(r'^    "(.+)": lambda', FORGE, flags=re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Flood:
    """What each process of a program sends at most, for how long, and by how much a supervisor may grow."""

    megabytes: int
    seconds: float
    grown: int


#: Each kind in a short flood, which shows what is kept of every record, and in one that fills what is bounded.
FLOODS = [
    pytest.param(Flood(6, 0.5, 40 * MIB), id="short"),
    pytest.param(Flood(12, 2, 64 * MIB), id="long", marks=pytest.mark.slow),
]


def run_forger(
    service: Service, kind: str, flood: Flood, processes: int = 0, devices: int = 1
) -> tuple[JobRecord, int]:
    """The job of a forger as it has ended, and by how much the memory of its supervisor's own has grown at most."""
    bounds = (str(flood.megabytes), str(flood.seconds), str(processes))
    job = service.run_script({"train.py": FORGE}, kind, *bounds, devices=devices)
    taken: list[int] = []

    def has_ended() -> JobRecord | None:
        with suppress(OSError, ValueError, IndexError):  # it has not begun, or has ended
            status = Path(f"/proc/{service.supervisor(service.attempt(job))}/status").read_text()
            taken.append(int(status.split("RssAnon:")[1].split()[0]) * 1024)
        record = service.job(job)
        return record if record.state is JobState.FAILED else None

    record = eventually(has_ended, f"the end of {job}")
    service.ended(job)
    return record, max(taken) - taken[0]


def check_end(service: Service, record: JobRecord) -> None:
    """It was tried once, and what there was until then can be read."""
    assert record.attempt == 1
    assert service.text(record.id) == "begun"
    assert service.report(record.id)["final"]


def test_every_kind_of_record_is_forged() -> None:
    tags = {kind.__struct_config__.tag for kind in get_args(AnyRecord)}
    assert tags - {kind.split()[0] for kind in KINDS} == {"Outcome"}  # which ends the rank; `Returned` has one


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_supervisor_stays_small_whatever_records_a_rank_forges(service: Service, kind: str, flood: Flood) -> None:
    record, grown = run_forger(service, kind, flood)
    assert record.reason is StateReason.CODE_ERROR, record
    assert "the rank's channel is corrupt" in record.message
    assert grown < flood.grown
    check_end(service, record)


def test_an_attempt_whose_records_take_too_much_of_its_supervisor_is_ended(service: Service) -> None:
    """Each of many processes may send as many splits as honest ones do: together that is too much."""
    flood = Flood(12, 60, 192 * MIB)
    record, grown = run_forger(service, "Split of eight devices", flood, processes=40, devices=8)
    assert record.reason is StateReason.RESOURCE_LIMIT, record
    assert record.error is not None
    assert record.error["limit"] == "records"
    assert grown < flood.grown
    check_end(service, record)
