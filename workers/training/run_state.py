"""One run of a recipe on one rank: the parts that were built, and its progress."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from jobs.model.spec import RecipeProgram
from workers.runtime.context import CheckpointAccess, RankContext
from workers.training.rng_state import RandomStates
from workers.training.strategies import PlacedModel

Loss = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True, slots=True)
class EpochStart:
    """What an epoch's order of rows, and the seeds of its loader's workers, are made from."""

    draws: RandomStates
    loader: torch.Tensor  # state of the loader's generator


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """The epoch that was broken off, and the random numbers that come next."""

    epoch_start: EpochStart
    draws: RandomStates


@dataclass(slots=True)
class RunProgress:
    """How far a run is."""

    steps_done: int = 0
    epoch: int = 0
    batches_done: int = 0  # of the epoch
    epoch_start: EpochStart | None = None  # known where the run is saved
    last_loss: torch.Tensor | None = None  # of this rank, in the last step
    metrics: dict[str, float] = field(default_factory=dict)
    is_over: bool = False  # including the last evaluation
    saved_step: int = 0  # the last step that was saved, or that saving was tried for
    resumed: ResumePoint | None = None  # until the loader is back where it was


@dataclass(slots=True)
class TrainingRun:
    """Everything that the loop works with. `loss` and `optimizer` are there when the mode is train."""

    program: RecipeProgram
    context: RankContext
    strategy: PlacedModel
    loader: DataLoader[Any]
    loss: Loss | None = None
    optimizer: Optimizer | None = None
    evaluation: DataLoader[Any] | None = None
    scheduler: LRScheduler | None = None
    scaler: GradScaler | None = None  # where gradients may be too small for their precision
    progress: RunProgress = field(default_factory=RunProgress)
    pending_loss: Callable[[], None] | None = None  # waits for the loss of all ranks, and sends its mean
    # -- what every step asks for
    autocast: AbstractContextManager[object] = field(init=False)  # in the precision that the spec asks for
    is_plain: bool = field(init=False)  # on the host and in float32: batches need not be moved, nor operators chosen
    reads_every_loss: bool = field(init=False)  # where that waits neither for a device nor for other ranks
    moves_rate_every_step: bool = field(init=False)  # the learning rate; else it moves every epoch

    def __post_init__(self) -> None:
        precision, scheduler = self.program.precision, self.program.scheduler
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
        """Send the mean over ranks of the last loss that was read, where they still add it up."""
        if self.pending_loss is not None:
            send, self.pending_loss = self.pending_loss, None
            send()

    @property
    def checkpoints(self) -> CheckpointAccess | None:
        """Where to save, if this run is to be saved."""
        wanted = self.program.checkpoint is not None and self.program.mode == "train"
        return self.context.checkpoints if wanted else None
