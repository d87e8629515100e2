import xml.etree.ElementTree as ET

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardyard.contract.report import Report
from shardyard.render.svg.heat_map import draw_heat_map
from shardyard.render.svg.palette import MEASURES, By
from shardyard.render.svg.svg import PictureFrame
from tests.support.svg_reading import (
    EXAMPLES,
    SVG,
    cells,
    changed,
    classes,
    example,
    many,
    on_gpus,
    parsed,
    tips,
    words,
)

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.json"))


def test_each_device_has_its_rows_of_each_pattern() -> None:
    drawn = draw_heat_map(example("rows-on-8-devices"))

    said = [word for _, word in cells(drawn)]
    assert said == ["4"] * 7 + ["2"] + ["2"] * 5 + ["idle"] * 3
    assert [kind for kind, _ in cells(drawn)][-4:] == ["c3", "idle", "idle", "idle"]
    assert {"forward, 30 rows", "3 steps, 0-2", "forward, 10 rows", "step 3", "cpu:7"} <= set(words(drawn))


def test_an_idle_device_is_hatched_and_says_idle_and_how_often() -> None:
    drawn = draw_heat_map(example("rows-on-8-devices"))

    hatched = [rect for rect in parsed(drawn).iter(f"{SVG}rect") if rect.get("fill") == "url(#sy-idle)"]
    assert len(hatched) == 3 + 1  # and the one of the legend
    assert parsed(drawn).find(f".//{SVG}pattern[@id='sy-idle']") is not None
    assert words(drawn).count("1/4") == 3
    assert "Idle: devices 5 to 7 in 1 of 4 steps." in words(drawn)


def test_a_slow_device_has_an_outline_and_says_slow() -> None:
    drawn = draw_heat_map(example("straggler-on-rank-1"), "wait")
    assert classes(drawn).count("slow-line") == 1 + 1  # and the one of the legend
    assert "slow" in words(drawn)
    assert "rank 3" in words(drawn)


def test_nothing_is_marked_where_the_report_finds_nothing() -> None:
    drawn = draw_heat_map(example("three-of-thirty"))
    assert "slow-line" not in classes(drawn)
    assert not [word for word in words(drawn) if "slow" in word or "idle" in word]


def test_the_output_device_is_marked_under_dp_alone() -> None:
    assert "output" in words(draw_heat_map(on_gpus(), output_device=0))
    assert "output" not in words(draw_heat_map(on_gpus()))
    assert "output" not in words(draw_heat_map(example("two-ranks"), output_device=0))


def test_a_cell_tells_shapes_to_the_pointer() -> None:
    assert "device 2: 10 rows, input 10 x 5, output 10 x 2" in tips(draw_heat_map(example("three-of-thirty")))


def test_times_waits_and_memory_have_maps_of_their_own() -> None:
    assert {"ms per row", "backward, p95"} <= set(words(draw_heat_map(example("two-ranks"), "time")))
    assert {"data wait", "communication"} <= set(words(draw_heat_map(example("two-ranks"), "wait")))
    assert [word for _, word in cells(draw_heat_map(on_gpus(), "memory"))][:2] == ["40.0 GiB", "9.00 GiB"]


def test_what_was_not_measured_is_never_drawn_as_zero_and_its_note_is_there() -> None:
    drawn = draw_heat_map(example("three-of-thirty"), "memory")
    assert cells(drawn) == []
    assert "peak memory: virtual devices share the memory of the host" in words(drawn)
    assert cells(draw_heat_map(on_gpus(), "memory"))[-1] == ("unknown", "-")
    assert "not measured" in words(draw_heat_map(on_gpus(), "memory"))


def test_rows_that_could_not_be_counted_are_empty_cells() -> None:
    found = example("three-of-thirty")
    pattern = msgspec.structs.replace(found.patterns[0], rows=(10, None, 10))
    drawn = draw_heat_map(changed(found, patterns=(pattern,), notes={"patterns.rows": "because"}))
    assert cells(drawn) == [("c6", "10"), ("unknown", "-"), ("c6", "10")]
    assert "- rows could not be counted: because" in words(drawn)


def test_a_report_without_a_step_says_so() -> None:
    drawn = draw_heat_map(changed(example("three-of-thirty"), patterns=(), final=False))
    assert "no step has been seen" in words(drawn)
    assert "has not ended" in " ".join(words(drawn))


def test_patterns_that_are_too_many_are_summed_up_in_words() -> None:
    found = many(4, 256)
    drawn = draw_heat_map(found)
    assert len(cells(drawn)) == 24 * 4
    said = " ".join(words(drawn))
    rest = sorted((pattern.steps or 0 for pattern in found.patterns), reverse=True)[24:]
    assert f"232 rarer ways to divide a batch are not drawn: {sum(rest):,} steps" in said


def test_sixty_four_devices_stand_in_blocks_and_more_share_columns() -> None:
    assert len(cells(draw_heat_map(many(64, 2)))) == 2 * 64
    grouped = draw_heat_map(many(1024, 2))
    assert len(cells(grouped)) == 2 * 64
    assert "a column with two numbers stands for all devices from the one to the other" in words(grouped)
    assert "1008-1023" in words(grouped)


def test_devices_that_are_alike_share_a_column_where_there_is_no_room_for_all() -> None:
    found = many(1000, 1)
    rows = (8,) * 600 + (3,) + (0,) * 399
    costs = (msgspec.structs.replace(d, idle_steps=2 * (d.device > 600), steps=2) for d in found.per_device)
    pattern = msgspec.structs.replace(found.patterns[0], rows=rows, shapes_vary=False)
    drawn = draw_heat_map(changed(found, patterns=(pattern,), per_device=tuple(costs)), output_device=0)
    assert cells(drawn) == [("c6", "8"), ("c6", "8"), ("c2", "3"), ("idle", "idle")]
    assert {"0", "1-599", "600", "601-999", "always", "output"} <= set(words(drawn))
    assert "devices 1 to 599: 8 each" in tips(drawn)
    telephone = draw_heat_map(many(17, 1), frame=PictureFrame(heading=False, narrow=True))
    assert len(cells(telephone)) <= 17


def test_a_report_of_one_device_of_many_has_that_column() -> None:
    found = example("rows-on-8-devices")
    one = changed(found, devices=found.devices[7:], per_device=found.per_device[7:])
    assert [word for _, word in cells(draw_heat_map(one))] == ["2", "idle"]


@pytest.mark.parametrize("by", MEASURES)
@pytest.mark.parametrize("name", NAMES)
def test_every_picture_is_well_formed_and_fits_its_frame(name: str, by: By) -> None:
    for frame in (PictureFrame(), PictureFrame(heading=False, narrow=True)):
        drawn = draw_heat_map(example(name), by, name=name, output_device=0, frame=frame)
        fits(parsed(drawn))
        assert drawn == draw_heat_map(example(name), by, name=name, output_device=0, frame=frame)


@pytest.mark.parametrize("found", [many(1, 1), many(3, 40), many(17, 3), many(64, 256), many(1000, 12)])
def test_extremes_are_well_formed_small_and_fit(found: Report) -> None:
    drawn = draw_heat_map(found, name="n" * 200)
    fits(parsed(drawn))
    assert len(drawn) < 400_000


def test_a_picture_for_a_telephone_is_no_wider_than_one() -> None:
    drawn = draw_heat_map(example("rows-on-8-devices"), frame=PictureFrame(heading=False, narrow=True))
    assert float(parsed(drawn).get("width", "")) <= 345


def fits(root: ET.Element) -> None:
    wide, high = float(root.get("width", "")), float(root.get("height", ""))
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("x") is not None and rect.get("class") != "slow-line":
            assert 0 <= float(rect.get("x", "")) <= wide - float(rect.get("width", "")) + 0.2
            assert float(rect.get("y", "")) + float(rect.get("height", "")) <= high


@given(name=st.text(), note=st.text(), module=st.text(), device=st.text())
def test_whatever_people_write_the_picture_stays_well_formed(name: str, note: str, module: str, device: str) -> None:
    found = example("rows-on-8-devices")
    drawn = draw_heat_map(
        changed(
            found,
            notes={"patterns.rows": note, "per_device.comm_ms": note},
            patterns=(msgspec.structs.replace(found.patterns[0], module=module, rows=(None,) * 8),),
            devices=tuple(msgspec.structs.replace(one, id=device, name=device) for one in found.devices),
        ),
        name=name,
    )
    assert parsed(drawn).tag == f"{SVG}svg"
    drawn.encode()


def test_script_tags_and_turned_text_are_harmless() -> None:
    name = "</text><script>alert(1)</script> ]]> \x1b[31m \u202egnirts\x00"
    drawn = draw_heat_map(example("three-of-thirty"), name=name)
    assert "<script" not in drawn
    assert not {"\u202e", "\x00", "\x1b"} & set(drawn)
    assert [element.tag for element in parsed(drawn).iter() if "script" in element.tag] == []
