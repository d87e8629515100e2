"""The trials of a sweep: a spec with other values at some paths, all of a grid or drawn at random."""

import copy
import itertools
import math
import random
from collections.abc import Mapping
from typing import Any

import msgspec

from api.groups.variants import limit_steps, read_base
from api.schemas.group_requests import MAX_TRIALS, SweepRange, SweepRequest
from api.schemas.job_requests import parse_spec
from jobs.model.error_words import shorten
from jobs.model.spec import JobSpec, RecipeProgram
from shardyard.contract.errors import FieldError, InvalidRequest, InvalidSpec

PROBLEM = "the sweep is not valid"
Values = Mapping[str, Any]


def list_values(wanted: SweepRequest) -> list[dict[str, Any]]:
    """The values of each trial, in their order, of a grid or at random. Raises InvalidRequest."""
    if wanted.grid is not None:
        count = math.prod(len(values) for values in wanted.grid.values())
        if count > MAX_TRIALS:
            message = f"{count:,} combinations, and a sweep has at most {MAX_TRIALS}; leave values out, or use random"
            raise InvalidRequest(PROBLEM, fields=(FieldError("grid", message),))
        return [dict(zip(wanted.grid, values, strict=True)) for values in itertools.product(*wanted.grid.values())]
    assert wanted.random is not None
    drawn = random.Random(wanted.seed)  # noqa: S311  (no secret: the same seed draws the same values)
    return [{path: _draw(drawn, choices) for path, choices in wanted.random.items()} for _ in range(wanted.trials or 0)]


def _draw(drawn: random.Random, choices: list[Any] | SweepRange) -> Any:
    if isinstance(choices, list):
        return drawn.choice(choices)
    low, high = choices.min, choices.max
    if choices.log:
        value = math.exp(drawn.uniform(math.log(low), math.log(high)))
        return round(value) if choices.is_whole else min(max(value, low), high)
    return drawn.randint(int(low), int(high)) if choices.is_whole else drawn.uniform(low, high)


def check_base(wanted: SweepRequest) -> None:
    """Raises InvalidSpec, NotSupported, InvalidRequest."""
    base = read_base(wanted.spec)
    if wanted.steps is not None and not isinstance(base.program, RecipeProgram):
        message = "only for recipes: it is not known where to end a script; leave it out"
        raise InvalidRequest(PROBLEM, fields=(FieldError("steps", message),))


def make_spec(wanted: SweepRequest, number: int, values: Values) -> JobSpec:
    """The spec of a trial by its number and its values. Raises InvalidRequest, which names the values."""
    spec: dict[str, Any] = copy.deepcopy(wanted.spec)
    if wanted.steps is not None:
        limit_steps(spec, wanted.steps)
    for path, value in values.items():
        _set_value(spec, wanted.field, path, value)
    name = wanted.name or spec.get("name") or "sweep"
    spec["name"] = f"{name[:180]}-{number}"
    try:
        return parse_spec(msgspec.json.encode(spec))
    except InvalidSpec as error:
        words = ", ".join(f"{path}={shorten(str(value))}" for path, value in values.items())
        wrong = tuple(_of_sweep(wanted, one, words) for one in error.fields)
        raise InvalidRequest(
            PROBLEM, fields=wrong or (FieldError(wanted.field, f"{error.message} ({words})"),)
        ) from None


def _of_sweep(wanted: SweepRequest, wrong: FieldError, words: str) -> FieldError:
    """An error at a value of the sweep, or else at the spec."""
    path = next((path for path in wanted.paths if wrong.field.startswith(path)), None)
    field = f"spec.{wrong.field}" if path is None else f"{wanted.field}.{path}"
    return FieldError(field, f"{wrong.message} (with {words})")


def _set_value(spec: dict[str, Any], field: str, path: str, value: Any) -> None:
    """Raises InvalidRequest: there is no such place."""
    *parents, last = path.split(".")
    place: Any = spec
    for part in parents:
        if isinstance(place, dict):
            place = place.setdefault(part, {})
        elif isinstance(place, list) and part.isdigit() and int(part) < len(place):
            place = place[int(part)]
        else:
            raise _no_place(field, path)
    if isinstance(place, dict):
        place[last] = value
    elif isinstance(place, list) and last.isdigit() and int(last) < len(place):
        place[int(last)] = value
    else:
        raise _no_place(field, path)


def _no_place(field: str, path: str) -> InvalidRequest:
    message = "a spec has no such place; write the path of a field, such as program.data.batch_size"
    return InvalidRequest(PROBLEM, fields=(FieldError(f"{field}.{path}", message),))
