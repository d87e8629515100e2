"""One run of a recipe on one rank: the parts that were built, and its progress."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from jobs.model.spec import RecipeProgram
from shardyard.script.sampler import ShareSampler
from workers.probe.step_profiler import StepProfiler
from workers.runtime.context import CheckpointAccess, RankContext
from workers.training.rng_state import RandomStates
from workers.training.strategies import PlacedModel

Loss = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The random states from which an epoch draws its order of rows and the seeds of its loader's workers."""

    draws: RandomStates
    loader: torch.Tensor  # state of the loader's generator


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The random states of the interrupted epoch: at its start, and at the checkpoint."""

    epoch_start: EpochStart
    draws: RandomStates


@dataclass(slots=True)
class RunProgress:
    steps_done: int = 0
    epoch: int = 0
    batches_done: int = 0  # of the epoch
    epoch_start: EpochStart | None = None  # only for runs that save checkpoints
    last_loss: torch.Tensor | None = None  # of this rank, in the last step
    metrics: dict[str, float] = field(default_factory=dict)
    is_over: bool = False  # including the last evaluation
    saved_step: int = 0  # the last step that was saved, or whose save was tried
    resumed: ResumePoint | None = None  # until the loader is at the position of the checkpoint


class StepProof(Protocol):
    """Proves something of one step; all ranks call it together."""

    is_due: bool  # no step has been proven yet

    def begin(self, run: "TrainingRun", batches: Sequence[Any]) -> bool:
        """Before a step over `batches`; false where it is not the one."""

    def keep_gradients(self, run: "TrainingRun") -> None:
        """After the backward of the step, before gradients are clipped."""

    def compare(self, run: "TrainingRun") -> None:
        """After the step."""


@dataclass(slots=True)
class TrainingRun:
    """The parts and the progress of a run. `loss` and `optimizer` are set in the mode train."""

    program: RecipeProgram
    context: RankContext
    strategy: PlacedModel
    loader: DataLoader[Any]
    loss: Loss | None = None
    optimizer: Optimizer | None = None
    evaluation: DataLoader[Any] | None = None
    scheduler: LRScheduler | None = None
    scaler: GradScaler | None = None  # for float16, in which gradients may underflow
    progress: RunProgress = field(default_factory=RunProgress)
    weights: tuple[float, ...] | None = None  # of all devices
    proof: "StepProof | None" = None  # that unequal rows change no gradient, where there are any
    pending_loss: Callable[[], None] | None = None  # waits for the loss of all ranks, and sends its mean
    # -- what every step needs
    profiler: StepProfiler = field(init=False)
    autocast: AbstractContextManager[object] = field(init=False)  # in the precision that the spec asks for
    is_plain: bool = field(init=False)  # on the host and in float32: batches need no move, and forwards no autocast
    reads_every_loss: bool = field(init=False)  # true if reading waits neither for a device nor for other ranks
    moves_rate_every_step: bool = field(init=False)  # the learning rate changes every step, else every epoch

    def __post_init__(self) -> None:
        precision, scheduler = self.program.precision, self.program.scheduler
        self.profiler = StepProfiler(self.context)
        on_host = self.context.device_kind == "cpu"
        self.is_plain = on_host and precision == "float32"
        self.reads_every_loss = on_host and self.context.world_size == 1
        self.autocast = (
            nullcontext()
            if precision == "float32"
            else torch.autocast(self.context.device_kind, dtype=getattr(torch, precision))
        )
        self.moves_rate_every_step = scheduler is not None and scheduler.every == "step"

    def send_pending_loss(self) -> None:
        """Send the mean over ranks of the last loss that was read, if the ranks still compute it."""
        if self.pending_loss is not None:
            send, self.pending_loss = self.pending_loss, None
            send()

    @property
    def sampler(self) -> ShareSampler | None:
        """What deals rows to ranks, where that is not DistributedSampler."""
        sampler: object = self.loader.batch_sampler
        return sampler if isinstance(sampler, ShareSampler) else None

    @property
    def checkpoints(self) -> CheckpointAccess | None:
        """Where to save checkpoints, if this run saves any."""
        wanted = self.program.checkpoint is not None and self.program.mode == "train"
        return self.context.checkpoints if wanted else None
