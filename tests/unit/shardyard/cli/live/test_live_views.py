"""What the live views draw: devices of a watched job, and the board of `top`, on small screens and with many jobs."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console, RenderableType

from shardyard.cli.live import device_table, top
from shardyard.cli.live.device_table import DeviceRow, RowRates, device_rows, draw_devices
from shardyard.cli.live.top import BoardFilter, ServiceBoard, SortOrder
from shardyard.client import events
from shardyard.client.report import SplitReport
from shardyard.contract.fleet import DeviceView, NodeView, PoolView
from shardyard.contract.report import time_parts
from shardyard.contract.responses import JobSummary, PlacementView, Progress, ReasonView

EXAMPLES = Path(__file__).parents[5] / "docs" / "examples"
NOW = datetime(2026, 1, 2, 3, 4, 10, tzinfo=UTC)


def report(name: str) -> SplitReport:
    return SplitReport.from_json((EXAMPLES / f"{name}.json").read_bytes())


def lines(drawing: RenderableType, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, force_terminal=False, color_system=None)
    with console.capture() as captured:
        console.print(drawing)
    return [line.rstrip() for line in captured.get().splitlines()]


# -- devices ---------------------------------------------------------------------------------------


def test_idle_devices_of_the_last_batch_are_hatched_and_called_idle() -> None:
    rows = device_rows([f"cpu:{device}" for device in range(8)], report("ten-for-eight"), {})
    assert [row.rows for row in rows] == [2, 2, 2, 2, 2, 0, 0, 0]
    assert [row.mark for row in rows] == [""] * 5 + ["idle"] * 3
    shown = lines(draw_devices(rows, 80, 20))
    assert len(shown) == 9
    assert all(len(line) <= 80 for line in shown)
    assert "////" in shown[6]
    assert "idle in" in shown[6]
    assert "█" in shown[1]


def test_the_device_that_the_others_wait_for_is_called_slow() -> None:
    rows = device_rows([f"cpu:{device}" for device in range(4)], report("straggler-on-rank-1"), {})
    assert [row.mark for row in rows] == ["", "slow", "", ""]
    for row, one in zip(rows, report("straggler-on-rank-1").data.per_device, strict=True):
        parts = time_parts(one)
        assert row.waits == pytest.approx((parts["data_wait_ms"] + parts["comm_ms"]) / (one.wall_ms or 0), rel=0.01)
    assert "slow" in lines(draw_devices(rows, 80, 20))[2]


def test_without_a_report_there_are_names_alone() -> None:
    shown = lines(draw_devices(device_rows(["cpu:0", "cpu:1"], None, {}), 80, 20))
    assert [line.split()[0] for line in shown[1:]] == ["cpu:0", "cpu:1"]


@pytest.mark.parametrize(("width", "height"), [(80, 6), (200, 4), (40, 3), (20, 1)])
def test_many_devices_share_lines_and_the_marked_ones_are_shown_first(width: int, height: int) -> None:
    rows = [DeviceRow(f"cuda:{device}", 4, mark="slow" if device == 63 else "") for device in range(64)]
    shown = lines(draw_devices(rows, width, height), width)
    assert len(shown) <= height + 1
    assert all(len(line) <= width for line in shown)
    if width >= 40:
        assert "slow" in "".join(shown)
        assert "more devices" in shown[-1]


def test_memory_is_shown_where_devices_have_it() -> None:
    shown = lines(draw_devices([DeviceRow("cuda:0", 4, 10.0, 0.5, 3 * 1024**3)], 80, 20))
    assert "memory" in shown[0]
    assert "3.0 GiB" in shown[1]


def test_the_speed_of_a_device_is_that_between_two_reports() -> None:
    pace = RowRates()
    first = report("three-of-thirty")
    measured = first.data.per_device
    more = tuple(msgspec.structs.replace(one, rows=(one.rows or 0) + 50) for one in measured)
    second = SplitReport(msgspec.structs.replace(first.data, per_device=more))
    pace.take(first, now=10.0)
    assert pace.rates == {}
    pace.take(second, now=12.0)
    assert pace.rates == {0: 25.0, 1: 25.0, 2: 25.0}
    pace.take(second, now=13.0)
    assert pace.rates[0] == 25.0, "the same report again says nothing of speed"
    pace.take(SplitReport(msgspec.structs.replace(second.data, attempt=2)), now=14.0)
    assert pace.rates == {}


# -- top -------------------------------------------------------------------------------------------


def a_job(number: int, state: str = "queued", **fields: Any) -> JobSummary:
    known: dict[str, Any] = {"name": f"job-{number}", "strategy": "dp", "devices": 2, "pool": "default"}
    identity = f"01980000-0000-7000-8000-{number:012d}"
    return JobSummary(id=identity, state=state, created_at=NOW - timedelta(seconds=5), **(known | fields))


def a_board(devices: int = 8, jobs: int = 3, queued: int = 1) -> ServiceBoard:
    board = ServiceBoard()
    for number in range(jobs):
        held = PlacementView(node="host-a", devices=[f"cuda:{number}"])
        board.take(events.JobChanged(job=a_job(number, "running", placement=[held], started_at=NOW)))
    for number in range(jobs, jobs + min(queued, 200)):
        board.take(events.JobChanged(job=a_job(number, reason=ReasonView(message="needs 2: 0 of 8 free"))))
    leased = [
        DeviceView(
            device=at,
            label=f"cuda:{at}",
            state="leased" if at < jobs else "free",
            job=a_job(at).id if at < jobs else None,
        )
        for at in range(devices)
    ]
    board.nodes = [NodeView(id="host-a", pool="default", alive=True, devices=leased)]
    board.pools = [
        PoolView(
            name="default", devices=devices, free=devices - jobs, leased=jobs, nodes=1, live_nodes=1, queued=queued
        )
    ]
    return board


def test_the_board_says_who_holds_what_and_what_waits() -> None:
    board = a_board()
    board.progress = {a_job(0).id: Progress(fraction=0.5, rows_per_second=200.0, eta_seconds=60)}
    shown = lines(top.draw_board(board, SortOrder.STATE, 80, 24, NOW))
    assert "3/8 leased, 5 free, 1 job waiting" in shown[0]
    assert shown[1] == "host-a ABC·····"
    assert shown[4].startswith("A  job-0")
    assert "█████░░░░░  50%" in shown[4]
    assert "needs 2: 0 of 8" in shown[7]
    assert all(len(line) <= 80 for line in shown)


def test_ten_thousand_jobs_and_sixty_four_devices_fit_on_a_small_screen() -> None:
    board = a_board(devices=64, jobs=60, queued=9_973)
    shown = lines(top.draw_board(board, SortOrder.STATE, 80, 24, NOW))
    assert len(shown) <= 24
    assert all(len(line) <= 80 for line in shown)
    assert shown[1].startswith("host-a ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+")
    assert "9,973 jobs waiting" in shown[0].replace("9973", "9,973")
    assert shown[-1].startswith("and 9973 more jobs waiting")
    assert len(board.jobs) == 260


def test_the_board_keeps_a_bounded_number_of_jobs() -> None:
    board = ServiceBoard()
    for number in range(top.KEPT + 50):
        board.take(events.JobChanged(job=a_job(number)))
    assert len(board.jobs) == top.KEPT


def test_a_wide_screen_has_ids_to_copy() -> None:
    shown = lines(top.draw_board(a_board(), SortOrder.STATE, 130, 24, NOW), 130)
    assert a_job(0).id in shown[4]


def test_jobs_that_end_are_deleted_or_do_not_match_leave_the_board() -> None:
    board = a_board()
    board.take(events.JobChanged(job=a_job(0, "succeeded")))
    board.take(events.JobGone(job_id=a_job(1).id))
    assert sorted(job.name for job in board.jobs.values()) == ["job-2", "job-3"]
    board.chosen = BoardFilter(label="team=vision")
    board.take(events.JobChanged(job=a_job(7, labels={"team": "vision"})))
    board.take(events.JobChanged(job=a_job(2, labels={"team": "audio"})))
    assert sorted(job.name for job in board.jobs.values()) == ["job-3", "job-7"]


def test_what_was_missed_is_fetched_anew() -> None:
    board = ServiceBoard()
    board.take(events.FleetChanged())
    assert (board.fleet_stale, board.stale) == (True, False)
    board.take(events.Resync(reason="too_slow"))
    assert board.stale


@pytest.mark.parametrize(
    ("by", "first"),
    [
        (SortOrder.STATE, "b"),
        (SortOrder.CREATED, "a"),
        (SortOrder.NAME, "a"),
        (SortOrder.DEVICES, "c"),
        (SortOrder.PRIORITY, "d"),
    ],
)
def test_the_list_is_sorted_as_asked(by: SortOrder, first: str) -> None:
    board = ServiceBoard()
    jobs = [
        a_job(1, name="a"),
        a_job(2, "running", name="b"),
        a_job(3, name="c", devices=8),
        a_job(4, name="d", priority=9),
    ]
    for job in jobs:
        board.take(events.JobChanged(job=job))
    assert board.sorted(by)[0].name == first


def test_devices_that_are_not_to_be_had_are_marked_and_named() -> None:
    board = a_board(jobs=0)
    states = ["quarantined", "offline", "free", "leased"]
    devices = [
        DeviceView(device=at, label=f"cuda:{at}", state=state, job="another tenant" if state == "leased" else None)
        for at, state in enumerate(states)
    ]
    board.nodes = [NodeView(id="host-a", alive=True, draining=True, devices=devices)]
    assert lines(top.draw_board(board, SortOrder.STATE, 80, 24, NOW))[1] == "host-a x-·#  draining, quarantine: cuda:0"


def test_names_of_jobs_are_text_and_nothing_else() -> None:
    board = ServiceBoard()
    board.take(events.JobChanged(job=a_job(1, name="[red]a[/] \x1b[2J")))
    shown = "\n".join(lines(top.draw_board(board, SortOrder.STATE, 80, 24, NOW)))
    assert "[red]a[/]" in shown
    assert "\x1b" not in shown


def test_a_report_as_json_is_read_back() -> None:
    first = report("three-of-thirty")
    assert SplitReport.from_json(first.to_json()) == first
    assert json.loads(first.to_json())["job_id"] == first.job_id
    assert device_table.IDLE == "idle"
