"""Follows what an attempt saves while its ranks run: the checkpoints of a recipe, which `CheckpointCoordinator` has
them save together, and those of a script, which `SaveHold` holds back."""

from collections.abc import Callable, Sequence
from time import monotonic

from jobs.model.spec import ScriptProgram
from jobs.protocol.packets import SingleRecord, StepBatch
from workers.rank.handle import RankHandle
from workers.runtime.launch import AttemptConfig
from workers.supervisor.carriage import AttemptCarriage
from workers.supervisor.checkpoints.coordinator import CheckpointCoordinator
from workers.supervisor.checkpoints.messages import MessageSink, report_messages
from workers.supervisor.checkpoints.save_hold import SaveHold
from workers.supervisor.checkpoints.writer import AttemptCheckpoints


class SaveWatch:
    """Belongs to the loop of a supervisor. `checkpoints`: where the job asks for them; `carriage`: where the storage is
    not mounted. `sink` is the job's log and report; `excuse_silence` is called while ranks may be silent because they
    save."""

    def __init__(
        self,
        config: AttemptConfig,
        ranks: Sequence[RankHandle],
        checkpoints: AttemptCheckpoints | None,
        carriage: AttemptCarriage | None,
        sink: MessageSink,
        excuse_silence: Callable[[float], None],
    ) -> None:
        self.coordinator = None if checkpoints is None else _make_coordinator(config, ranks, checkpoints)
        is_script = isinstance(config.spec.program, ScriptProgram)
        self._hold = SaveHold(carriage, ranks[0], sink.log_line) if carriage is not None and is_script else None
        self._sink = sink
        self._excuse_silence = excuse_silence

    def on_record(self, rank: int, record: StepBatch | SingleRecord) -> None:
        """Take what a rank has sent, in its order."""
        if self.coordinator is not None:
            for one in record.steps if isinstance(record, StepBatch) else (record,):
                self.coordinator.on_record(rank, one, monotonic())

    def on_program_end(self, rank: int) -> None:
        if self.coordinator is not None:
            self.coordinator.rank_done(rank)

    def on_tick(self, now: float) -> None:
        if self.coordinator is not None:
            self.coordinator.on_tick(now)
            if self.coordinator.is_saving:
                self._excuse_silence(now)
            report_messages(self.coordinator.take_messages(), self._sink)
        if self._hold is not None:
            self._hold.on_tick()
            if self._hold.is_held:
                self._excuse_silence(now)


def _make_coordinator(
    config: AttemptConfig, ranks: Sequence[RankHandle], checkpoints: AttemptCheckpoints
) -> CheckpointCoordinator:
    def send_command(rank: int, command: bytes) -> None:
        ranks[rank].send_command(command)

    return CheckpointCoordinator(
        len(ranks),
        checkpoints.settings.every_steps,
        checkpoints.writer,
        send_command,
        checkpoints.first_step,
        config.spec.limits.stall_seconds,
    )
