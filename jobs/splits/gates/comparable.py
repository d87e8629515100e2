"""Whether the times of two runs can be compared: both do the same work on as many devices, in the same way."""

from collections import Counter
from collections.abc import Iterator

from shardyard.contract.report import Report

#: The first one that a run has is its main phase.
MAIN_PHASES = ("train", "forward", "eval")


def list_differences(report: Report, against: Report) -> list[str]:
    """What differs, in words, `report` first; nothing where the two can be compared."""
    pairs = zip(_shape_of(report), _shape_of(against), strict=True)
    return [f"{name} {ours} against {theirs}" for (name, ours), (_, theirs) in pairs if ours != theirs]


def _shape_of(report: Report) -> Iterator[tuple[str, object]]:
    yield "strategy", report.strategy
    yield "devices", len(report.devices)
    yield "kind of devices", f"virtual {report.device_kind}" if report.virtual else report.device_kind
    yield "global batch", _usual_batch(report)
    yield "rehearsal", report.rehearsal


def _usual_batch(report: Report) -> int | str:
    """Rows of most steps of the main phase."""
    found = {one.phase for one in report.patterns}
    main = next((phase for phase in MAIN_PHASES if phase in found), None)
    steps: Counter[int] = Counter()
    for one in report.patterns:
        if one.phase == main and one.batch_rows is not None:
            steps[one.batch_rows] += one.steps or 0
    return steps.most_common(1)[0][0] if steps else "unknown"
