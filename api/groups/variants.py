"""The variants of a comparison: a spec under each strategy on each number of devices, with as many rows a step."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from api.schemas.group_requests import ComparisonRequest
from api.schemas.job_requests import parse_spec
from jobs.model.spec import DISTRIBUTED, JobSpec, RecipeProgram
from shardyard.contract.errors import FieldError, InvalidRequest, InvalidSpec
from shardyard.contract.groups import ENDLESS_EPOCHS, LeftOut, set_strategy

#: What short runs leave out: it takes time between steps, and nobody needs what it leaves.
_NOT_IN_SHORT_RUNS = ("evaluate", "checkpoint")
PROBLEM = "the comparison is not valid"


@dataclass(frozen=True, slots=True)
class PlannedVariant:
    strategy: str
    devices: int
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    global_batch_size: int
    variants: Sequence[PlannedVariant]
    left_out: Sequence[LeftOut]


def read_base(body: Mapping[str, Any]) -> JobSpec:
    """The spec that a group is made of. Raises InvalidSpec, with fields below `spec`; NotSupported."""
    try:
        return parse_spec(msgspec.json.encode(body))
    except InvalidSpec as error:
        raise below_spec(error) from None


def below_spec(error: InvalidRequest) -> InvalidRequest:
    """What is wrong with a job's spec, as it is said of the spec in the body of a group."""
    fields = (FieldError(f"spec.{wrong.field}", wrong.message) for wrong in error.fields)
    return type(error)(error.message, fields=tuple(fields))


def limit_steps(spec: dict[str, Any], steps: int) -> None:
    """Makes a run of a recipe end after so many optimizer steps."""
    program = spec["program"]
    program |= {"max_steps": steps, "epochs": ENDLESS_EPOCHS}
    for name in _NOT_IN_SHORT_RUNS:
        program.pop(name, None)


def plan_comparison(wanted: ComparisonRequest) -> ComparisonPlan:
    """Raises:
    InvalidSpec, NotSupported: the spec is not valid by itself.
    InvalidRequest: it is one that cannot be compared, or no variant is valid.
    """
    base = read_base(wanted.spec)
    rows = _check_base(base)
    variants, left_out = [], []
    for devices in wanted.devices:
        for strategy in wanted.strategies:
            try:
                variants.append(_make_variant(wanted, base, rows, strategy, devices))
            except InvalidSpec as error:
                first = error.fields[0]
                why = f"{first.field}: {first.message}" if error.fields else error.message
                left_out.append(LeftOut(strategy=strategy, devices=devices, why=why))
    if not variants:
        why = "; ".join(f"{one.strategy} on {one.devices}: {one.why}" for one in left_out)
        raise InvalidRequest(PROBLEM, fields=(FieldError("strategies", f"none of them is valid here: {why}"),))
    return ComparisonPlan(rows, variants, left_out)


def _check_base(base: JobSpec) -> int:
    """The rows of each step. Raises InvalidRequest."""

    def refuse(field: str, message: str) -> InvalidRequest:
        return InvalidRequest(PROBLEM, fields=(FieldError(f"spec.{field}", message),))

    if not isinstance(base.program, RecipeProgram):
        raise refuse("program.kind", "only recipes can be compared: it is not known where to end a script")
    if base.program.mode != "train":
        raise refuse("program.mode", "only training can be compared; leave it out")
    if base.resources.nodes > 1:
        raise refuse("resources.nodes", "a comparison runs on one node; leave it out")
    rows = base.global_batch_size
    assert rows is not None
    return rows


def _make_variant(wanted: ComparisonRequest, base: JobSpec, rows: int, strategy: str, devices: int) -> PlannedVariant:
    """Raises:
    InvalidSpec: a spec cannot be so.
    InvalidRequest: the rows do not divide.
    """
    if strategy == "single" and devices > 1:
        message = "the strategy single has only one device"
        raise InvalidSpec(message, fields=(FieldError("devices", message),))
    spec: dict[str, Any] = copy.deepcopy(wanted.spec)
    set_strategy(spec, strategy, devices)
    limit_steps(spec, wanted.steps)
    ranks = devices if strategy in DISTRIBUTED else 1
    spec["program"]["data"]["batch_size"] = _rows_of_rank(base, rows, ranks, strategy, wanted)
    name = wanted.name or base.name or "comparison"
    spec["name"] = f"{name[:180]}-{strategy}{devices}"
    return PlannedVariant(strategy, devices, parse_spec(msgspec.json.encode(spec)))


def _rows_of_rank(base: JobSpec, rows: int, ranks: int, strategy: str, wanted: ComparisonRequest) -> int:
    parts = ranks * base.recipe.accumulate_steps
    if rows % parts:
        multiple = math.lcm(*wanted.devices) * base.recipe.accumulate_steps
        accumulated = f" in {base.recipe.accumulate_steps} batches" if base.recipe.accumulate_steps > 1 else ""
        message = (
            f"the {rows} rows of a step do not divide among {ranks} ranks of {strategy}{accumulated}; choose a size so "
            f"that a step has a multiple of {multiple} rows"
        )
        raise InvalidRequest(PROBLEM, fields=(FieldError("spec.program.data.batch_size", message),))
    return rows // parts
