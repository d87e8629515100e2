"""Compares what was planned with what was observed, at the end of an attempt."""

from collections import defaultdict
from collections.abc import Sequence

from jobs.splits.plan import Prediction
from shardyard.contract.report import Pattern, PredictionCheck, describe_rows

MAX_DIFFERENCES = 20


_Key = tuple[str, int | None, tuple[int | None, ...] | None]


def check_prediction(
    prediction: Prediction, observed: Sequence[Pattern], *, complete: bool, overflowed: bool
) -> tuple[PredictionCheck, str | None]:
    """Compare the run that was planned with the patterns observed; the second value is a remark.

    A run that did not complete has fewer steps, and ranks missing from its last ones: that is
    remarked on, and is no difference. `overflowed`: there were more patterns than a report keeps.
    """
    if not prediction.planned:
        return PredictionCheck(None, []), None
    if not observed and not prediction.run:
        return PredictionCheck(True, []), "no step was planned: the data makes no full batch"
    if not observed and not complete:
        return PredictionCheck(None, []), "no step took place"
    differences: list[str] = []
    remarks: list[str] = []
    compared = overflowed
    planned_by_phase = _by_phase(prediction.run)
    observed_by_phase = _by_phase(observed)
    for phase in sorted({*planned_by_phase, *observed_by_phase}):
        planned, seen = planned_by_phase.get(phase, []), observed_by_phase.get(phase, [])
        if any(pattern.steps is None for pattern in planned):
            remarks.append(f"{phase}: not compared, the size of the data set was not known")
            continue
        compared = True
        if any(pattern.rows is None for pattern in planned):
            remarks.append(f"{phase}: only the number of steps was compared, rows could not be planned")
            differences += _count_difference(phase, planned, seen, complete)
        else:
            differences += _pattern_differences(phase, planned, seen, complete)
    if overflowed:
        differences.append("there were more different splits than a report keeps")
    if not complete:
        remarks.append(_how_far(planned_by_phase, observed_by_phase))
    result = PredictionCheck(not differences if compared else None, differences[:MAX_DIFFERENCES])
    return result, "; ".join(remarks) or None


def _by_phase(patterns: Sequence[Pattern]) -> dict[str, list[Pattern]]:
    phases: dict[str, list[Pattern]] = defaultdict(list)
    for pattern in patterns:
        phases[pattern.phase].append(pattern)
    return phases


def _pattern_key(pattern: Pattern) -> _Key:
    return pattern.module, pattern.batch_rows, pattern.rows


def _pattern_differences(phase: str, planned: Sequence[Pattern], seen: Sequence[Pattern], complete: bool) -> list[str]:
    expected = {_pattern_key(pattern): pattern.steps or 0 for pattern in planned}
    found = {_pattern_key(pattern): pattern.steps or 0 for pattern in seen}
    differences = []
    for pattern in seen:
        steps = pattern.steps or 0
        if _pattern_key(pattern) in expected:
            continue
        if not complete and any(_cut_short(pattern, other) for other in planned):
            continue
        differences.append(f"{_pattern_name(phase, pattern)}: not planned, but observed in {_steps_text(steps)}")
    for pattern in planned:
        want, got = expected[_pattern_key(pattern)], found.get(_pattern_key(pattern), 0)
        if got > want or (complete and got < want):
            differences.append(f"{_pattern_name(phase, pattern)}: planned in {_steps_text(want)}, observed in {got:,}")
    return differences


def _count_difference(phase: str, planned: Sequence[Pattern], seen: Sequence[Pattern], complete: bool) -> list[str]:
    want, got = _total_steps(planned), _total_steps(seen)
    if got > want or (complete and got < want):
        return [f"{phase}: {_steps_text(want)} planned, {got:,} observed"]
    return []


def _cut_short(observed: Pattern, planned: Pattern) -> bool:
    """Whether a split is a planned one from which some ranks are missing."""
    if observed.module != planned.module or observed.rows is None or planned.rows is None:
        return False
    return all(got in (want, 0) for got, want in zip(observed.rows, planned.rows, strict=True))


def _how_far(planned: dict[str, list[Pattern]], observed: dict[str, list[Pattern]]) -> str:
    parts = []
    for phase, patterns in planned.items():
        known = all(pattern.steps is not None for pattern in patterns)
        of = f" of {_total_steps(patterns):,}" if known else ""
        parts.append(f"{_total_steps(observed.get(phase, [])):,}{of} {phase} steps")
    return f"the run ended early, after {' and '.join(parts)}; missing steps are not counted as differences"


def _total_steps(patterns: Sequence[Pattern]) -> int:
    return sum(pattern.steps or 0 for pattern in patterns)


def _pattern_name(phase: str, pattern: Pattern) -> str:
    where = f" in {pattern.module}" if pattern.module else ""
    batch = "a batch" if pattern.batch_rows is None else f"a batch of {pattern.batch_rows:,}"
    return f"{phase}: {batch}{where} split {describe_rows(pattern.rows or ())}".rstrip()


def _steps_text(count: int) -> str:
    return "1 step" if count == 1 else f"{count:,} steps"
