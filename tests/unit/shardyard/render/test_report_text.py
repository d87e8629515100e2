import re

import msgspec
import pytest

from jobs.protocol.records import BatchSplit, Note
from shardyard.contract.report import Report, Resumed, encode_report
from shardyard.render.report_text import render_report
from tests.support.samples import script_streams
from tests.support.samples.record_streams import aggregator, run, split, step
from tests.support.samples.specs import make_spec
from tests.support.samples.timed_streams import node_run


def report_of(strategy: str, devices: int, batch_size: int, rows: int, module: str | None = None) -> Report:
    spec = make_spec(strategy, devices, batch_size, parallelism={"module": module} if module else None)
    return run(spec, rows)[0].make_report(final=True)


def test_the_splits_read_as_a_table_of_steps_by_devices() -> None:
    lines = render_report(report_of("dp", 8, 30, 100), 80).splitlines()

    assert lines[0] == "Split report of job job-1, attempt 1, final"
    assert lines[1] == "strategy dp, 8 virtual cpu devices on host-a"
    assert lines[2].endswith("of the devices' time goes into forward, backward and optimizer.")
    table = [line.split() for line in lines[5:9]]
    assert table[0] == ["phase", "steps", "from-to", "batch", *map(str, range(8))]
    assert table[2] == ["train", "3", "0-2", "30", "4", "4", "4", "4", "4", "4", "4", "2"]
    assert table[3] == ["train", "1", "3-3", "10", "2", "2", "2", "2", "2", "idle", "idle", "idle"]


def test_a_report_that_was_carried_over_says_so_at_its_head() -> None:
    report = msgspec.structs.replace(report_of("dp", 2, 30, 100), attempt=2, resumed=Resumed(step=2, attempt=1))

    lines = render_report(report).splitlines()

    assert lines[1] == "resumed after 2 steps, from a checkpoint of attempt 1; they count here too"
    assert "resumed" not in render_report(report_of("dp", 2, 30, 100))


def test_a_number_that_was_not_measured_is_a_dash_and_a_note() -> None:
    text = render_report(report_of("single", 1, 30, 100), 200, notes=True)

    assert re.search(r"^  0 +cpu:0 .* -$", text, re.MULTILINE)
    assert "virtual devices share the memory of the host (balance.output_device_memory_skew, " in text
    assert "None" not in text


def test_each_reason_among_the_notes_is_a_line_of_its_own_behind_an_option() -> None:
    fields = [f"per_device.a{number}" for number in range(13)]
    notes = dict.fromkeys(fields, "no step was seen") | {"balance.cause": "no step was seen; nothing was planned"}
    report = msgspec.structs.replace(report_of("dp", 2, 30, 100), notes=notes)

    short, whole = render_report(report), " ".join(render_report(report, notes=True).split())

    assert "2 on numbers that are missing or count differently: --notes shows them" in short
    assert "no step was seen" not in short
    assert whole.count("no step was seen") == 1
    assert f"no step was seen (balance.cause, {', '.join(sorted(fields))})" in whole
    assert whole.endswith("nothing was planned (balance.cause)")


def test_findings_come_with_their_suggestions() -> None:
    text = render_report(report_of("ddp", 4, 30, 90))

    assert "[info] sampler-padding: 4 ranks of 23 rows read 92 rows of 90" in text
    assert "-> set resources.devices to 3" in text
    assert "the splits are those that were planned" in text
    assert "DataParallel's primitives" not in text


def test_a_difference_from_the_plan_is_listed() -> None:
    told = aggregator(make_spec("dp", 2, 10), 10)
    told.add_record(0, split(0, [0, 1], [6, 4]))
    told.add_record(0, step(0, [0], [6, 4]))

    text = render_report(told.make_report(final=True))

    assert "the splits are not those that were planned" in text
    assert "- train: a batch of 10 split 6, 4: not planned, but observed in 1 step" in text


def test_a_report_without_a_step_says_so() -> None:
    text = render_report(aggregator(make_spec("dp", 2, 10), 10).make_report(final=False))

    assert "attempt 1, so far" in text
    assert "no step has been seen" in text


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("devices", [1, 7, 64])
@pytest.mark.parametrize("module", [None, "encoder.layers.11.attention.output.projection"])
def test_no_line_is_wider_than_asked_and_no_number_is_cut(width: int, devices: int, module: str | None) -> None:
    report = report_of("dp", devices, 900_000, 2_000_000, module)
    text = render_report(report, width)

    assert max(map(len, text.splitlines())) <= width
    for pattern in report.patterns:
        for count in pattern.rows or ():
            assert f"{count:,}" in text
    assert not re.search(r"\d…", text)
    assert text.endswith("\n")


def test_large_numbers_and_long_ids_fit_into_eighty_columns() -> None:
    report = report_of("dp", 8, 800_000, 800_000)
    devices = [msgspec.structs.replace(d, id=f"GPU-0f2b6d1e-9a77-4f3c-8d21-{d.device:012d}") for d in report.devices]
    measures = [
        msgspec.structs.replace(d, rows=9_876_543_210, steps=12_345_678, idle_steps=1_234_567, memory_peak_bytes=2**36)
        for d in report.per_device
    ]

    text = render_report(msgspec.structs.replace(report, devices=tuple(devices), per_device=tuple(measures)), 80)

    for number in ("9,876,543,210", "12,345,678", "1,234,567", "64.0 GiB"):
        assert text.count(number) == 8
    assert max(map(len, text.splitlines())) <= 80


def test_sixty_four_devices_come_in_blocks_of_eight() -> None:
    text = render_report(report_of("dp", 64, 640, 640), 80)

    headers = [line.split()[4:] for line in text.splitlines() if line.split()[:2] == ["phase", "steps"]]
    assert headers == [[str(n) for n in range(start, start + 8)] for start in range(0, 64, 8)]


def test_shapes_that_vary_are_marked() -> None:
    report = report_of("single", 1, 30, 30)
    varying = msgspec.structs.replace(report.patterns[0], shapes_vary=True)

    text = render_report(msgspec.structs.replace(report, patterns=(varying,)))

    assert "train *" in text
    assert "* the shapes differ between these steps" in text


def test_text_from_a_rank_can_neither_move_the_cursor_nor_be_taken_for_markup() -> None:
    told = aggregator(make_spec("dp", 2, 10), 10)
    told.add_record(0, Note("per_device.comm_ms", "\x1b[2Jgone [bold]loud[/bold] \x07"))

    text = render_report(told.make_report(final=False), notes=True)

    assert r"\x1b[2Jgone [bold]loud[/bold] \x07" in text
    assert "\x1b" not in text


# -- scripts ---------------------------------------------------------------------------------------


def test_a_rehearsal_is_called_one_at_the_top() -> None:
    rehearsed, plain = (script_streams.told("dp", 2, rehearse=yes).make_report(final=False) for yes in (True, False))

    assert render_report(rehearsed).splitlines()[1].startswith("REHEARSAL: ")
    assert "REHEARSAL" not in render_report(plain)


def test_wrapped_modules_have_a_column_of_their_own() -> None:
    script = script_streams.told("dp", 2)
    feed = script_streams.feed
    feed(script, script_streams.steps([[4, 4]] * 3, (0, 1), module="Generator"))
    feed(script, script_streams.steps([[8, 8]], (0, 1), phase="eval", module="Discriminator", first_id=9))
    lines = [line.split() for line in render_report(script.make_report(final=False)).splitlines()]

    assert ["phase", "module", "steps", "from-to", "batch", "0", "1"] in lines
    assert ["train", "Generator", "3", "0-2", "8", "4", "4"] in lines
    assert ["eval", "Discriminator", "1", "0-0", "16", "8", "8"] in lines


def test_rows_that_could_not_be_counted_are_a_dash_that_is_explained() -> None:
    script = script_streams.told()
    script.add_record(0, BatchSplit(0, "train", "", None, (0,), (None,), ((35, 20),), ((35, 20),)))
    script.add_record(0, step(0, [0], [0]))
    text = render_report(script.make_report(final=False))

    assert re.search(r"^  train +1 +0-0 +- +-$", text, re.MULTILINE)
    assert re.search(r"^  - the rows could not be counted: \w", text, re.MULTILINE)
    assert "None" not in text


def test_a_script_that_did_nothing_says_so_under_its_findings() -> None:
    script = script_streams.told()
    script.add_record(0, script_streams.IDLE)
    script_streams.end(script)
    text = render_report(script.make_report(final=True, last_line="no GPU, bye"))

    assert "no step has been seen" in text
    assert "[warning] no-work-done" in text
    assert "no GPU, bye" in text


# -- several nodes ---------------------------------------------------------------------------------


def test_several_nodes_have_a_row_each_and_devices_say_where_they_are() -> None:
    text = render_report(node_run(2, 2, 100, slow_node=1).make_report(final=False))
    lines = [line.split() for line in text.splitlines()]

    assert ["host-0", "0-1", "1,600", "50.0%", "100", "1"] in lines
    assert ["host-1", "2-3", "1,600", "50.0%", "100", "2"] in lines
    (waits,), (computes,) = ([line for line in lines if len(line) == 9 and line[0] == f"host-{n}"] for n in range(2))
    assert int(waits[6][:-1]) > 30 > int(computes[6][:-1]), "host-0 communicates, which is waiting for host-1"
    assert ["device", "node", "id", "rows", "share", "steps", "idle", "ms/row", "peak", "memory"] in lines
    assert [line[1:3] for line in lines if line[1:2] in (["host-0"], ["host-1"])] == [
        [f"host-{index // 2}", f"cpu:{index % 2}"] for index in range(4)
    ]
    assert ["slowest", "node", "host-1"] in lines


def test_one_node_reads_as_it_always_did() -> None:
    report = node_run(1, 2, 100).make_report(final=False)
    text = render_report(report)

    assert report.per_node == ()
    assert b"slowest_node" not in encode_report(report)
    assert "Nodes" not in text
    assert "slowest node" not in text
    assert "device   id " in text
    assert not any("node" in field for field in report.notes)


def test_eight_nodes_of_eight_devices_fit_into_80_columns() -> None:
    lines = render_report(node_run(8, 8, 30).make_report(final=False), 80).splitlines()

    assert max(map(len, lines)) <= 80
    assert lines[1] == "strategy ddp, 64 virtual cpu devices on host-0, host-1, host-2, host-3 and 4"  # more
    assert [line.split()[:3] for line in lines if "56-63" in line] == [["host-7", "56-63", "1,920"]]
    assert sum(line.split()[1:2] == ["host-7"] for line in lines) == 8


def test_what_is_missing_of_a_node_has_the_reason_of_its_devices() -> None:
    told = node_run(2, 2, 0)
    notes = told.make_report(final=False).notes

    assert notes["per_node.slowest_device"] == notes["balance.slowest_node"] == notes["balance.slowest_device"]
    assert notes["per_node.forward_ms"] == notes["per_device.forward_ms"]
    assert "per_node" not in "".join(run(make_spec("ddp", 2, 8), 16)[0].make_report(final=True).notes)
