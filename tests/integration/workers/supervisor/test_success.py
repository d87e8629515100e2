"""Jobs that end well, and what they see of the node."""

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from jobs import store
from jobs.model.state import JobState, StateReason
from jobs.protocol import names
from tests.integration.workers.service import NODE, TENANT, Service, eventually
from tests.support.timing import once_below

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("strategy", "devices", "rows", "split"),
    [
        ("single", 1, 12, [12]),
        ("dp", 8, 16, [2] * 8),
        ("dp", 3, 10, [4, 4, 2]),
        ("dp", 8, 4, [1, 1, 1, 1, 0, 0, 0, 0]),
        ("ddp", 2, 6, [6, 6]),
        ("ddp", 4, 6, [6] * 4),
    ],
)
def test_a_job_succeeds_and_its_report_is_there_when_its_end_shows(
    service: Service, strategy: str, devices: int, rows: int, split: list[int]
) -> None:
    job = service.submit(strategy, devices, rows=rows)
    record = service.finished(job)
    report = service.report(job)
    logs = [service.lines(job, device) for device in range(devices)]
    telemetry = service.store.client
    assert (record.state, record.reason) == (JobState.SUCCEEDED, StateReason.COMPLETED), record
    assert record.result is not None
    assert record.result["loss"] > 0
    assert report["final"]
    assert [(pattern["rows"], pattern["steps"]) for pattern in report["patterns"]] == [(split, 4)]
    assert telemetry.exists(names.report_key(TENANT, job, 1))
    for device, lines in enumerate(logs):
        info: Any = telemetry.xinfo_stream(names.log_stream(TENANT, job, 1, device))
        assert info["last-generated-id"] == f"{len(lines)}-1".encode()
    service.ended(job)
    history = [service.run(store.read_history(f"{NODE}:cpu:{index}", limit=1)).lines[0] for index in record.leased]
    told = {(line.attempt, line.reason, line.peers) for line in history}
    assert told == {(f"{TENANT}/{job}/1", "completed", devices - 1)}
    compared = [line.relative is not None for line in history]
    assert compared == [devices > 1 and bool(shard) for shard in split]


def test_two_jobs_run_side_by_side_on_devices_of_their_own(service: Service) -> None:
    first, second = service.long("ddp", 2), service.long("dp", 3)
    assert {service.job(job).state for job in (first, second)} == {JobState.RUNNING}
    devices = service.held_by(first) + service.held_by(second)
    assert len(set(devices)) == len(devices) == 5
    for job in (first, second):
        service.cancel(job)
        assert service.ended(job).state is JobState.CANCELLED


def test_two_ddp_jobs_run_while_the_usual_port_is_taken(service: Service) -> None:
    with socket.socket() as taken:
        with suppress(OSError):  # somebody else has it, which will do
            taken.bind(("127.0.0.1", 29500))
            taken.listen()
        jobs = [service.submit("ddp", 2) for _ in range(2)]
        assert [service.ended(job).state for job in jobs] == [JobState.SUCCEEDED] * 2


def test_the_rendezvous_listens_on_the_nodes_address_alone(service: Service) -> None:
    job = service.long("ddp", 2)
    assert _listens_on(service.supervisor(service.attempt(job))) == ["0100007F"]  # 127.0.0.1
    service.cancel(job)
    service.ended(job)


def _listens_on(pid: int) -> list[str]:
    """Addresses, in hex as the kernel writes them, of the listening sockets that a process has open."""
    links = (os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd"))
    own = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:[")}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in own:
                found.append(fields[1].partition(":")[0])
    return found


def test_ranks_get_what_torchrun_sets_and_nothing_of_the_service(service: Service) -> None:
    job = service.submit("ddp", 2, fault="print_environment", rank=-1)
    service.ended(job)
    for rank in range(2):
        variables = _printed(service.text(job, rank), "env")
        assert variables["RANK"] == variables["LOCAL_RANK"] == str(rank)
        assert variables["WORLD_SIZE"] == "2"
        assert variables[names.ATTEMPT_MARK] == f"{TENANT}/{job}/1"
        assert not [name for name in variables if name.startswith("SHARDYARD_") and name != names.ATTEMPT_MARK]
        assert service.server.url not in variables.values()


def test_a_rank_and_what_it_starts_have_no_file_open_that_is_not_theirs(service: Service) -> None:
    job = service.submit("single", fault="read_open_files")
    service.ended(job)
    lines = service.text(job).splitlines()
    own = [line.split(maxsplit=2)[2].partition(":[")[0] for line in lines if line.startswith("open")]
    lock = str(service.marks(service.attempt(job)).ranks_lock)
    # Words from the supervisor, records to it, stdout and stderr; standard input is nothing.
    assert sorted(own) == sorted(["/dev/null", *["pipe"] * 4, lock])
    listed = {int(line.split()[-3]): line.split()[-1] for line in lines if line.startswith("child")}
    inherited = {target for number, target in listed.items() if number > 2 and not target.startswith("/proc")}
    assert inherited == {lock}


def _printed(text: str, head: str) -> dict[str, str]:
    parts = (line.split(" ", 2) for line in text.splitlines() if line.startswith(head))
    return {name: value for _, name, value in parts}


def test_a_rank_is_up_a_moment_after_it_was_submitted(service: Service) -> None:
    """The promise of the warm server: far less than an import of torch."""

    def waited() -> float:
        record = service.ended(service.submit("ddp", 2))
        assert record.first_step is not None
        return (record.first_step - record.created) / 1e6

    once_below(1.0, waited)


@pytest.mark.slow
def test_a_supervisor_with_nothing_to_do_costs_next_to_nothing(service: Service) -> None:
    job = service.submit("single", fault="sleep_forever")
    eventually(lambda: service.job(job).first_step, "the first step")
    supervisor = service.supervisor(service.attempt(job))
    once_below(0.05, lambda: _share_of_a_core(supervisor, 1.5), 10)
    private = sum(
        int(line.split()[1])
        for line in Path(f"/proc/{supervisor}/smaps_rollup").read_text().splitlines()
        if line.startswith(("Private_Clean", "Private_Dirty"))
    )
    service.cancel(job)
    service.ended(job)
    assert private < 100 * 1024, f"{private} KiB of its own"


def _share_of_a_core(pid: int, seconds: float) -> float:
    """What a process uses from now on."""
    before, began = _cpu_ticks(pid), os.times().elapsed
    eventually(lambda: os.times().elapsed - began > seconds, f"{seconds} seconds have passed")
    return (_cpu_ticks(pid) - before) / os.sysconf("SC_CLK_TCK") / (os.times().elapsed - began)


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
