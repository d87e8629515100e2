"""The position of a run in its data: the batches of an epoch from its beginning, or from a checkpoint on.

A loader draws the order of its rows, and the seed of its workers, from its generator when an epoch begins. So the
generator is saved as it was then, with the number of batches that have been trained on.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from workers.runtime.context import StopTraining
from workers.training import rng_state
from workers.training.run_state import EpochStart, TrainingRun


def remaining_batches(run: TrainingRun) -> Iterator[Any]:
    """The remaining batches of the epoch.

    Raises:
        StopTraining: the rank was told to stop while it skipped batches.
    """
    resumed, run.progress.resumed = run.progress.resumed, None
    if resumed is None:
        if run.checkpoints is not None:
            run.progress.epoch_start = EpochStart(
                rng_state.capture_random_states(run.context.devices), _generator_of(run.loader).get_state()
            )
        return iter(run.loader)
    rng_state.restore_random_states(resumed.epoch_start.draws)
    _generator_of(run.loader).set_state(resumed.epoch_start.loader)
    rest = (
        iter(_loader_from(run.loader, run.progress.batches_done))
        if _can_skip(run)
        else _skip_loaded(run, iter(run.loader))
    )
    rng_state.restore_random_states(resumed.draws)
    return rest


def _can_skip(run: TrainingRun) -> bool:
    """Whether the remaining batches are the same if the earlier ones are not loaded. Rows of a user's data set may be
    random, and then workers must draw the same numbers again."""
    if isinstance(run.loader.dataset, IterableDataset):
        return False
    return ":" not in run.program.data.ref or run.loader.num_workers == 0


def _skip_loaded(run: TrainingRun, every: Iterator[Any]) -> Iterator[Any]:
    """Load the batches that were trained on, and discard them."""
    for _ in islice(every, run.progress.batches_done):
        if run.context.stopping():
            raise StopTraining(f"told to stop while going back to step {run.progress.steps_done}")
    return every


class _RemainingBatches(Sampler[list[int]]):
    """The batches of a sampler without the first ones. The sampler draws its order as it would for all of them."""

    def __init__(self, all_batches: Any, done: int) -> None:
        self._all, self._done = all_batches, done

    def __iter__(self) -> Iterator[list[int]]:
        return islice(iter(self._all), self._done, None)

    def __len__(self) -> int:
        return max(0, len(self._all) - self._done)


def _loader_from(loader: DataLoader[Any], done: int) -> DataLoader[Any]:
    return DataLoader(
        loader.dataset,
        batch_sampler=_RemainingBatches(loader.batch_sampler, done),
        num_workers=loader.num_workers,
        multiprocessing_context=loader.multiprocessing_context,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        generator=loader.generator,
    )


def _generator_of(loader: DataLoader[Any]) -> torch.Generator:
    assert isinstance(loader.generator, torch.Generator)
    return loader.generator
