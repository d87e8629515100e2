"""The random numbers that a rank draws: those of torch, of its CUDA devices, of Python, and of NumPy."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from workers.runtime.context import RankDevice


@dataclass(frozen=True, slots=True)
class RandomStates:
    """What will be drawn next. Everything in it is a tensor, a number, or tuples and dicts of them."""

    cpu: torch.Tensor
    cuda: dict[int, torch.Tensor]  # by the index that CUDA has for a device
    python: tuple[Any, ...]
    numpy: tuple[Any, ...]


def capture_random_states(devices: Sequence[RankDevice]) -> RandomStates:
    name, keys, *rest = np.random.get_state(legacy=True)
    return RandomStates(
        cpu=torch.get_rng_state(),
        cuda={one.position: torch.cuda.get_rng_state(one.position) for one in devices if one.kind == "cuda"},
        python=random.getstate(),
        numpy=(name, torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
    )


def restore_random_states(draws: RandomStates) -> None:
    """
    Raises:
        ValueError, TypeError, RuntimeError: these are no states of generators.
    """
    torch.set_rng_state(draws.cpu)
    for index, state in draws.cuda.items():
        torch.cuda.set_rng_state(state, index)
    random.setstate(draws.python)
    name, keys, *rest = draws.numpy
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
