"""Makes the report of a recipe, which each attempt continues from its checkpoint."""

import math
from collections.abc import Sequence
from dataclasses import replace

from jobs.model.spec import JobSpec
from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import GradientProof, RowWeights
from jobs.splits.device_sums import RowCost
from jobs.splits.lint import lint_splits
from jobs.splits.plan import Prediction, predict_splits
from jobs.splits.weight_use import describe_weights, read_row_times
from shardyard.contract.report import Finding, Pattern, Resumed, SplitWeights
from workers.supervisor.report import aggregator_state
from workers.supervisor.report.aggregator import Aggregator, ReportSubject
from workers.supervisor.report.aggregator_state import AggregatorState, ReportIdentity
from workers.supervisor.report.findings.norm_findings import find_failed_norms, norm_facts
from workers.supervisor.report.leased_devices import LeasedDevice
from workers.supervisor.report.notes import DeviceCooperation
from workers.supervisor.report.patterns import PatternTable
from workers.supervisor.report.process_state import ProcessState
from workers.supervisor.report.step_counts import StepCounts, expand_part
from workers.supervisor.report.step_joiner import StepJoiner, order_by_epoch


class RecipeAggregator(Aggregator):
    def __init__(
        self, job_id: str, attempt: int, spec: JobSpec, lease: Sequence[LeasedDevice], prediction: Prediction
    ) -> None:
        how = spec.parallelism
        subject = ReportSubject(job_id, attempt, spec, tuple(sorted(lease, key=lambda device: device.logical)))
        use = DeviceCooperation(
            scatters=how.strategy == "dp",
            gathers_on=how.output_device,
            placed=how.strategy == "single" and len(lease) > 1,
            sharded=how.strategy == "fsdp",
        )
        counts = StepCounts(
            len(lease),
            (spec.recipe.mode,),
            in_turn=subject.virtual and use.scatters,
            comparable=not use.placed and not use.sharded,
        )
        super().__init__(
            subject, prediction, StepJoiner(spec.world_size, order_by_epoch(), expand=expand_part), counts, use
        )
        self._told_weights: RowWeights | None = None
        self._proof: GradientProof | None = None
        self._earlier_walls_ms: dict[int, float] = {}  # by rank, of the attempts before this one

    def dump_state(self) -> bytes:
        self._count(self._joiner.flush())
        counts, sums = self._counts, self._counts.sums
        return aggregator_state.encode_state(
            AggregatorState(
                version=aggregator_state.VERSION,
                about=self._identity(),
                attempt=self._subject.attempt,
                step=sums[counts.main_phase].steps if counts.main_phase in sums else 0,
                gone=self._joiner.last_released,
                forced=self._joiner.forced,
                late=self._joiner.late,
                measures=sums,
                patterns=list(counts.patterns.kept.values()),
                other=counts.patterns.other,
                absent_from=counts.absent_from,
                notes=self._rank_notes.by_field,
                malformed=self._malformed,
                uncounted=self._uncounted,
                crowded=counts.crowded,
                walls_ms=self._walls_at_last_step(),
            )
        )

    def load_state(self, data: bytes) -> None:
        state = aggregator_state.decode_state(data, self._identity())
        self._rank_notes.restore(state.notes)
        kept = {count.first.key: count for count in state.patterns if count.first is not None}
        patterns = PatternTable(kept, state.other)
        self._counts.restore(patterns, state.measures, state.absent_from, crowded=state.crowded)
        self._joiner.resume_after(state.gone, forced=state.forced, late=state.late)
        self._malformed, self._uncounted = state.malformed, state.uncounted
        self._resumed = Resumed(state.step, state.attempt)
        self._earlier_costs = [RowCost.of(device) for device in self._counts.main_measures.sums.devices]
        self._earlier_walls_ms = state.walls_ms

    def _identity(self) -> ReportIdentity:
        return ReportIdentity(
            job_id=self._subject.job_id,
            strategy=self._subject.spec.parallelism.strategy,
            ranks=self._processes.ranks,
            devices=len(self._subject.lease),
            phase=self._counts.main_phase,
        )

    def _walls_at_last_step(self) -> dict[int, float]:
        own = [process for process in self._processes.all_processes() if not process.source]
        walls = {process.rank: self._wall_ms_of(process.rank, process.last_step_at) for process in own}
        return {rank: wall_ms for rank, wall_ms in walls.items() if wall_ms is not None}

    def _wall_ms_of(self, rank: int, now: float | None) -> float | None:
        wall_ms, earlier_ms = super()._wall_ms_of(rank, now), self._earlier_walls_ms.get(rank)
        return earlier_ms if wall_ms is None else wall_ms + (earlier_ms or 0.0)

    def _add(self, process: ProcessState, record: AnyRecord) -> None:
        match record:
            case RowWeights() if self._told_weights is None and _are_weights(record, len(self._subject.lease)):
                self._told_weights = record
                self._divide_by(record.weights)
            case GradientProof() if math.isfinite(record.norm) and math.isfinite(record.difference):
                self._proof = self._proof or record
            case RowWeights() | GradientProof():
                self._malformed += 1
            case _:
                super()._add(process, record)

    def _divide_by(self, weights: tuple[float, ...]) -> None:
        """The plan can be made where weights had to be measured first."""
        spec = self._subject.spec
        if spec.parallelism.weights != "auto":
            return
        how = spec.parallelism.model_copy(update={"weights": weights})
        self._subject = replace(self._subject, spec=spec.model_copy(update={"parallelism": how}))
        self._prediction = predict_splits(self._subject.spec, self._prediction.train_rows, self._prediction.eval_rows)

    def _describe_weights(self) -> SplitWeights | None:
        if self._told_weights is None and not self._subject.spec.weighs_ranks:
            return None
        measures = self._counts.main_measures
        times = read_row_times(measures.sums.history.windows()) if measures.comparable else None
        return describe_weights(self._told_weights, self._proof, times)

    def _find_problems(
        self, patterns: Sequence[Pattern], final: bool, last_line: str, now: float | None
    ) -> tuple[Sequence[Finding], None]:
        processes = self._processes.all_processes()
        norms = next(iter(norm_facts(processes).values()), None)
        shown = patterns or (self._prediction.epoch if norms is not None else ())
        found = lint_splits(self._subject.spec, shown, self._prediction.train_rows, norms) if shown else []
        if not any(one.code == "one-row-shard" for one in found):
            found += find_failed_norms(processes, is_script=False, scatters=self._use.scatters)
        return found, None


def _are_weights(record: RowWeights, devices: int) -> bool:
    """Whether a rank has told numbers that can be weights, and times."""
    numbers = (*record.weights, *record.row_ms)
    fits = len(record.weights) == devices and len(record.row_ms) in (0, devices)
    return fits and all(math.isfinite(number) and number > 0 for number in numbers)
