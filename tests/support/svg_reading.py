"""Pictures read back with a strict XML parser, and reports that are drawn in the tests."""

import json
import random
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from shardyard.contract.report import RATES, Report, Timing, decode_report, encode_report

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SVG = "{http://www.w3.org/2000/svg}"

GIB = 1 << 30


@cache
def example(name: str) -> Report:
    return decode_report((EXAMPLES / f"{name}.json").read_bytes())


def changed(found: Report, **fields: Any) -> Report:
    return msgspec.structs.replace(found, **fields)


def of_earlier_version(found: Report) -> Report:
    """As the report would have been before its times were those of all steps."""
    body = json.loads(encode_report(found))
    for added in ("what_if", "verdict", *RATES):
        del body[added]
    for device in body["per_device"]:
        for added in ("optimizer_ms", "other_ms", "wall_ms", *RATES):
            del device[added]
        for timing in device.values():
            if isinstance(timing, dict):
                del timing["measured_steps"], timing["error"]
    return decode_report(json.dumps(body).encode())


def parsed(drawn: str) -> ET.Element:
    """Raises ParseError where it is not well-formed."""
    return ET.fromstring(drawn)


def words(drawn: str) -> list[str]:
    """All text that is seen, in order."""
    return [text for element in parsed(drawn).iter() if element.tag == f"{SVG}text" and (text := element.text)]


def tips(drawn: str) -> list[str]:
    return [text for element in parsed(drawn).iter(f"{SVG}title") if (text := element.text)]


def classes(drawn: str) -> list[str]:
    return [element.get("class", "") for element in parsed(drawn).iter()]


def cells(drawn: str) -> list[tuple[str, str]]:
    """(how it is marked, what it says) of every cell of a heat map."""
    groups = (group for group in parsed(drawn).iter(f"{SVG}g"))
    kinds = {"idle", "unknown", *(f"c{level}" for level in range(7))}
    return [(kind, word) for group in groups if (kind := group.get("class", "")) in kinds and (word := _word(group))]


def _word(group: ET.Element) -> str | None:
    found = group.find(f"{SVG}text")
    return None if found is None else found.text


def many(devices: int, patterns: int) -> Report:
    """A made-up report of that size in which nothing repeats, with shapes on every shard."""
    chance = random.Random(devices * 1000 + patterns)
    base = example("ten-for-eight")
    pattern, device, cost = base.patterns[0], base.devices[0], base.per_device[0]
    return changed(
        base,
        devices=tuple(msgspec.structs.replace(device, device=n, id=f"cpu:{n}") for n in range(devices)),
        per_device=tuple(msgspec.structs.replace(cost, device=n, idle_steps=n % 3) for n in range(devices)),
        patterns=tuple(
            msgspec.structs.replace(
                pattern,
                batch_rows=devices * n,
                rows=tuple(chance.choice([0, n, n, n + 1]) for _ in range(devices)),
                steps=chance.randint(1, 1000),
                first_step=n,
                last_step=n + 1000,
                input_shapes=((n, 3, 224, 224),) * devices,
                output_shapes=((n, 1000),) * devices,
            )
            for n in range(1, patterns + 1)
        ),
    )


def on_gpus() -> Report:
    """Eight GPUs under DataParallel: the first gathers, the last three are idle, one has no measured memory."""
    base = example("ten-for-eight")
    peaks = [40 * GIB, *[9 * GIB] * 6, None]
    return changed(
        base,
        virtual=False,
        device_kind="cuda",
        devices=tuple(
            msgspec.structs.replace(d, id=f"GPU-{d.device}f3a9021-1111-2222", memory_total_bytes=141 * GIB)
            for d in base.devices
        ),
        per_device=tuple(
            msgspec.structs.replace(d, memory_peak_bytes=peak) for d, peak in zip(base.per_device, peaks, strict=True)
        ),
        balance=msgspec.structs.replace(base.balance, output_device_memory_skew=4.44),
    )


def with_times(found: Report, **by_field: list[float]) -> Report:
    """The report with these milliseconds as p50 and p95 of each device's steps, 100 steps each."""
    costs = []
    for place, cost in enumerate(found.per_device):
        times = {field: Timing(100 * ms[place], ms[place], ms[place]) for field, ms in by_field.items()}
        costs.append(msgspec.structs.replace(cost, steps=100, idle_steps=0, **times))
    return changed(found, per_device=tuple(costs))
