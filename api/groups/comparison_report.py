"""The report of a comparison: what each variant has measured, and which one to take."""

from collections.abc import Sequence

import msgspec

from api.groups.measures import JobMeasures
from api.groups.windows import WARM_UP_STEPS, are_alike, measure_throughput
from shardyard.contract.groups import Comparison, ComparisonReport, Recommendation, Variant, VariantResult
from shardyard.contract.report import Report
from shardyard.formatting import count_noun


def make_report(found: Comparison, measures: Sequence[JobMeasures]) -> ComparisonReport:
    """`measures` are in the order of the variants."""
    measured = [
        _measure_variant(variant, one, found.global_batch_size)
        for variant, one in zip(found.variants, measures, strict=True)
    ]
    alone = max((one.rows_per_second or 0.0 for one in measured if one.devices == 1), default=0.0)
    results = [_relate(one, alone) for one in measured]
    complete = found.ended
    return ComparisonReport(
        id=found.id,
        name=found.name,
        state=found.state,
        complete=complete,
        steps=found.steps,
        warm_up_steps=WARM_UP_STEPS,
        global_batch_size=found.global_batch_size,
        variants=results,
        left_out=found.left_out,
        recommendation=recommend(results, complete=complete),
        notes=list(_notes(results, measures)),
    )


def _measure_variant(variant: Variant, measures: JobMeasures, rows: int) -> VariantResult:
    known = msgspec.structs.asdict(variant)
    report, throughput = measures.report, measure_throughput(measures.ends, rows)
    rate = throughput.rows_per_second if throughput is not None else None
    return VariantResult(
        **known,
        rows_per_second=rate,
        rows_per_second_error=throughput.error if throughput is not None else None,
        windows=throughput.windows if throughput is not None else 0,
        step_ms=1000 * rows / rate if rate else None,
        memory_peak_bytes=_peak_memory(report),
        communication_share=_communication_share(report),
        slowdown=report.what_if.ratio if report is not None and report.what_if is not None else None,
        device_seconds=1000 * variant.devices / rate if rate else None,
        loss=measures.loss,
        placement=measures.placement,
        curve=measures.curve,
    )


def _relate(result: VariantResult, alone: float) -> VariantResult:
    if not alone or result.rows_per_second is None:
        return result
    worth = result.rows_per_second / alone
    return msgspec.structs.replace(result, devices_worth=worth, efficiency=worth / result.devices)


def _peak_memory(report: Report | None) -> int | None:
    """Of the fullest device; of virtual devices what the fullest process had."""
    if report is None:
        return None
    peaks = [one.memory_peak_bytes for one in report.per_device if one.memory_peak_bytes is not None]
    series = (device.series.get("resident_bytes") for device in report.hardware)
    return max(peaks, default=None) or max((int(one.maximum) for one in series if one is not None), default=None)


def _communication_share(report: Report | None) -> float | None:
    if report is None:
        return None
    known = [(one.comm_ms.total, one.wall_ms) for one in report.per_device if one.comm_ms is not None and one.wall_ms]
    return sum(comm for comm, _ in known) / sum(wall for _, wall in known) if known else None


def describe(variant: Variant) -> str:
    return f"{variant.strategy} on {variant.devices}"


def recommend(results: Sequence[VariantResult], *, complete: bool) -> Recommendation:
    """The variant with the most rows a second, unless others cannot be told apart from it."""
    if not complete:
        return Recommendation(verdict="waiting", reason="not all of its jobs have ended")
    ranked = sorted(
        (one for one in results if one.state == "succeeded" and one.rows_per_second is not None),
        key=_rate,
        reverse=True,
    )
    if not ranked:
        return Recommendation(
            verdict="none", reason="no job has run long enough to be measured; compare more than 20 steps"
        )
    best = ranked[0]
    alike = [one for one in ranked if one is best or are_alike(_rate_with_error(one), _rate_with_error(best))]
    if best.rows_per_second_error is None or len(alike) > 1:
        words = " and ".join(describe(one) for one in alike)
        return Recommendation(
            verdict="too_noisy",
            candidates=[one.number for one in alike],
            reason=f"too noisy: {words} cannot be told apart by {count_noun(best.windows, 'window')} of steps; compare "
            "more steps, or take the one with fewer devices",
        )
    return Recommendation(
        verdict="recommended",
        variant=best.number,
        candidates=[best.number],
        reason=_reason(best, ranked),
        price=_price(best, ranked),
    )


def _rate(result: VariantResult) -> float:
    return result.rows_per_second or 0.0


def _rate_with_error(result: VariantResult) -> tuple[float, float | None]:
    return _rate(result), result.rows_per_second_error


def _reason(best: VariantResult, ranked: Sequence[VariantResult]) -> str:
    words = f"{describe(best)} has the most rows a second: {_rate(best):,.0f} ± {best.rows_per_second_error:,.0f}"
    if len(ranked) > 1:
        words += f", {_rate(best) / _rate(ranked[1]):.2f} times those of {describe(ranked[1])}"
    if best.devices_worth is not None and best.devices > 1:
        words += f"; its {best.devices} devices do the work of {best.devices_worth:.2f}"
    return words


def _price(best: VariantResult, ranked: Sequence[VariantResult]) -> str:
    cheapest = min(ranked, key=lambda one: one.device_seconds or 0.0)
    words = f"{best.device_seconds:.3g} device-seconds for 1,000 rows"
    if cheapest is best:
        return f"{words}, the least of all"
    return f"{words}; {describe(cheapest)} needs the least, {cheapest.device_seconds:.3g}"


def _notes(results: Sequence[VariantResult], measures: Sequence[JobMeasures]) -> list[str]:
    notes = []
    if not any(one.devices == 1 for one in results):
        notes.append("no variant has one device, so efficiency is not known; compare with --devices 1 as well")
    nodes = {place.node for one in results for place in one.placement}
    if len(nodes) > 1:
        notes.append(f"the jobs ran on {len(nodes)} nodes ({', '.join(sorted(nodes))}), which may differ in speed")
    if any(one.report is not None and one.report.virtual and one.report.strategy == "dp" for one in measures):
        notes.append("virtual devices under dp work one after another: their pace is not that of real ones")
    return notes
