"""Records with any values that their types allow, as a program may send them that writes to its channel itself."""

import random
import types
import typing
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from jobs.protocol.packets import AnyRecord
from jobs.protocol.records import MAX_COUNT, BatchSplit, Record, Shape, Step

KINDS: tuple[type[Record], ...] = get_args(AnyRecord)
_INTEGERS = (0, 1, 2, 3, 7, -1, 255, 4095, 2**31, MAX_COUNT, MAX_COUNT + 1, 2**63 - 1, 2**64 - 1, -(2**63))
_FLOATS = (0.0, 0.5, 1.0, -1.0, 1e-300, 1e300, 1.8e9, float("nan"), float("inf"), float("-inf"))
_TEXTS = (
    *("", "train", "eval", "forward", "loss", "learning_rate", "per_device", "job", "tqdm", "loader", "mean", "sum"),
    *("DistributedDataParallel", "DataParallel", "fully_shard", "nccl", "x" * 3000, "\x1b[31m\u202e"),
)
_PLAIN: dict[Any, Any] = {
    int: lambda dice: dice.choice(_INTEGERS) if dice.random() < 0.3 else dice.randrange(9),
    float: lambda dice: dice.choice(_FLOATS),
    str: lambda dice: dice.choice(_TEXTS),
    bool: lambda dice: dice.random() < 0.5,
    bytes: lambda dice: dice.randbytes(dice.randrange(100)),
    types.NoneType: lambda dice: None,
}


def forge(hint: Any, dice: random.Random) -> Any:
    """Any value of a type as the fields of records have them."""
    arguments = get_args(hint)
    match get_origin(hint):
        case typing.Annotated:
            return forge(arguments[0], dice)
        case typing.Union | types.UnionType:
            return forge(dice.choice(arguments), dice)
        case builtin if builtin is tuple:
            return tuple(forge(arguments[0], dice) for _ in range(dice.choice((0, 1, 1, 2, 3, 8))))
        case builtin if builtin is dict:
            return {forge(arguments[0], dice): forge(arguments[1], dice) for _ in range(dice.randrange(4))}
    if hint in _PLAIN:
        return _PLAIN[hint](dice)
    return hint(**{name: forge(inner, dice) for name, inner in get_type_hints(hint, include_extras=True).items()})


def forge_split(number: int, devices: int, dice: random.Random) -> BatchSplit:
    """A split whose lists fit together, so that its other values are looked at."""
    chosen = tuple(dice.sample(range(devices), dice.randrange(1, devices + 1)))
    rows, inputs, outputs = (
        tuple(forge(hint, dice) for _ in chosen) for hint in (int | None, Shape | None, Shape | None)
    )
    phase, module = dice.choice(("train", "eval", "forward")), dice.choice(("", "body"))
    return BatchSplit(number, phase, module, forge(int | None, dice), chosen, rows, inputs, outputs)


def forge_step(dice: random.Random) -> Step:
    """A step that names splits and has a phase, so that its other values are looked at."""
    splits = tuple(dice.randrange(8) for _ in range(dice.randrange(3)))
    number = dice.randrange(50) if dice.random() < 0.8 else dice.choice((MAX_COUNT, 10**9))
    phase = dice.choice(("train", "eval", "forward"))
    step: Step = msgspec.structs.replace(forge(Step, dice), phase=phase, splits=splits, step=number, epoch=0)
    return step
