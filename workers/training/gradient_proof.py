"""Compares the gradient of one step on all devices with that of one device on the whole batch.

It is done in the first step in which devices have unequal numbers of rows. The batches of all ranks travel to rank 0,
which computes the gradient on a copy of the model that no rank or wrapper has touched. The run itself is not changed:
neither its model nor its random numbers, and ranks wait for each other outside of steps.
"""

import io
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from jobs.protocol.records import GradientProof
from workers.training import rng_state
from workers.training.batch_shares import adds_up_losses, are_unequal, count_rows, split_pair
from workers.training.placement import map_tensors, move_tensors
from workers.training.run_state import TrainingRun

#: Batches of all ranks that are brought together are no larger than this.
MAX_BYTES = 256 * 1024**2
MAX_WORDS = 300
FIELD = "weights.gradient"


class ProofOfGradients:
    """`untouched` is a copy of the model before it was placed; only rank 0 has one."""

    def __init__(self, untouched: nn.Module | None) -> None:
        self._alone = untouched
        self._batches: list[Any] = []
        self._scale = 1.0
        self._gradients: dict[str, torch.Tensor] = {}
        self.is_due = True

    def begin(self, run: TrainingRun, batches: Sequence[Any]) -> bool:
        """Before a step over `batches`; false where it is not the one, or cannot be proven. All ranks call it."""
        scatters = run.context.world_size == 1
        if not scatters and not are_unequal(run, len(batches)):
            return False
        self.is_due = False
        with run.strategy.bare() as model:
            held = {name: _whole(tensor) for name, tensor in _named_tensors(model)}
        gathered = [list(batches)] if scatters else _gather(run, list(batches))
        if gathered is None:
            run.strategy.recorder.note(
                FIELD, f"the batches of all ranks have more than {MAX_BYTES // 1024**2} MiB, or do not travel"
            )
            return False
        if self._alone is not None and not _copy_tensors(held, self._alone):
            run.strategy.recorder.note(FIELD, "the model's tensors are not those with which it was built")
            self._alone = None
        self._batches = [batch for of_rank in gathered for batch in of_rank]
        self._scale = 1.0 if run.scaler is None else run.scaler.get_scale()
        return True

    def keep_gradients(self, run: TrainingRun) -> None:
        """After the backward of the step, before gradients are clipped. All ranks call it."""
        with run.strategy.bare() as model:
            for name, parameter in model.named_parameters():
                if parameter.grad is not None:
                    whole = _whole(parameter.grad)
                    if self._alone is not None:
                        self._gradients[name] = whole.detach().double() / self._scale

    def compare(self, run: TrainingRun) -> None:
        """After the step. All ranks call it, and leave it together."""
        if self._alone is not None:
            draws = rng_state.capture_random_states(run.context.devices)
            try:
                self._compare(run, self._alone, draws.cpu)
            except Exception as error:  # noqa: BLE001  (out of memory, or a user's model that cannot be copied)
                why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:MAX_WORDS]
                run.strategy.recorder.note(FIELD, f"the whole batch does not run on one device: {why}")
            finally:
                rng_state.restore_random_states(draws)
        self._alone, self._batches, self._gradients = None, [], {}
        run.strategy.total(torch.zeros(1, device=run.strategy.device))

    def _compare(self, run: TrainingRun, alone: nn.Module, draws: torch.Tensor) -> None:
        device, measure = run.strategy.device, run.loss
        assert measure is not None
        alone.to(device).train()
        inputs, target = split_pair(move_tensors(_join(self._batches), device))
        with run.autocast:
            loss = measure(alone(inputs), target)
        loss.backward()  # type: ignore[no-untyped-call]
        ranks = run.context.world_size if adds_up_losses(run) else 1  # a sum over ranks is averaged as a mean is
        norm = difference = 0.0
        for name, parameter in alone.named_parameters():
            if parameter.grad is None:
                continue
            wanted = parameter.grad.double() / ranks
            found = self._gradients.get(name)
            norm += float(wanted.square().sum())
            difference += float((wanted if found is None else found.to(device) - wanted).square().sum())
        step, rows = run.progress.steps_done, count_rows((inputs, target))
        recorder = run.strategy.recorder
        recorder.emit(GradientProof(step, rows, math.sqrt(norm), math.sqrt(difference)))
        if not torch.equal(draws, torch.get_rng_state()):
            recorder.note(FIELD, "the model draws random numbers (dropout, for one), so two gradients are never equal")
        elif any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in alone.modules()):
            recorder.note(
                FIELD, "BatchNorm takes its statistics from the rows of each device, and not of the whole batch"
            )


def _copy_tensors(held: dict[str, torch.Tensor], alone: nn.Module) -> bool:
    wanted = dict(_named_tensors(alone))
    if any(name not in held or held[name].shape != tensor.shape for name, tensor in wanted.items()):
        return False
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(held[name])
    return True


def _named_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach()


def _gather(run: TrainingRun, batches: list[Any]) -> list[Any] | None:
    """On rank 0 the batches of all ranks, on others only their own. None where they are too large, or one cannot be
    written: all ranks agree on that."""
    file = io.BytesIO()
    try:
        torch.save(map_tensors(batches, lambda tensor: tensor.cpu().clone()), file)
        size = file.tell()
        if size < MAX_BYTES:
            file.seek(0)
            torch.load(file, weights_only=True)
    except Exception:  # noqa: BLE001  (a user's batch may hold anything)
        size = MAX_BYTES
    total = run.strategy.total(torch.tensor(float(size), device=run.strategy.device))
    if total.item() >= MAX_BYTES:
        return None
    is_first = run.context.rank == 0
    with torch.cuda.device(run.strategy.device) if run.strategy.device.type == "cuda" else nullcontext():
        files: list[Any] | None = [None] * run.context.world_size if is_first else None
        dist.gather_object(file.getvalue(), files)
    if files is None:
        return [batches]
    return [torch.load(io.BytesIO(one), weights_only=True) for one in files]


def _join(batches: Sequence[Any]) -> Any:
    """Batches as one, row after row."""
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(batches)) if first.dim() else first
    if isinstance(first, dict):
        return type(first)((key, _join([batch[key] for batch in batches])) for key in first)
    if isinstance(first, (tuple, list)):
        make: Any = getattr(type(first), "_make", type(first))
        return make(_join(parts) for parts in zip(*batches, strict=True))
    return first
