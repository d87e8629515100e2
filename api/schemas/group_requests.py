"""Request bodies of groups of jobs: comparisons and sweeps."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from api.schemas.job_requests import MAX_SPEC_VALUES
from api.schemas.request_body import parse_body
from jobs.model.error_words import pattern
from jobs.model.spec import MAX_DEVICES, SHOWN_PATTERN
from jobs.model.validation import require_plain
from shardyard.contract.errors import FieldError, InvalidRequest

#: Trials of a sweep, variants of a comparison, and how long either may be.
MAX_TRIALS, MAX_DEVICE_COUNTS, MAX_GROUP_STEPS = 200, 16, 1_000_000
MAX_PATHS = 10
_PATH = pattern(r"^[^.\x00-\x1f\x7f]+(\.[^.\x00-\x1f\x7f]+)*$", "the path of a field, such as program.data.batch_size")
_METRIC = pattern(
    r"^(loss|rows_per_second|metrics\.[^\x00-\x1f\x7f]+)$", "loss, rows_per_second, or metrics.<name> of an evaluation"
)
GroupName = Annotated[str, Field(min_length=1, max_length=200, pattern=SHOWN_PATTERN), AfterValidator(require_plain)]
SpecPath = Annotated[str, Field(min_length=1, max_length=200, pattern=_PATH)]


class _GroupRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    spec: dict[str, Any] = Field(description="a job spec, as `POST /v1/jobs` takes it")
    name: GroupName | None = Field(None, description="a name for people, and the beginning of the names of its jobs")


class ComparisonRequest(_GroupRequest):
    """A spec, and what to run it under. Each job has `steps` optimizer steps, and each step as many rows as one of the
    spec has."""

    strategies: list[Literal["single", "dp", "ddp", "fsdp"]] = Field(
        min_length=1, max_length=4, description="how the model is put on the devices"
    )
    devices: list[Annotated[int, Field(ge=1, le=MAX_DEVICES, strict=True)]] = Field(
        min_length=1, max_length=MAX_DEVICE_COUNTS, description="how many devices, each beside each strategy"
    )
    steps: int = Field(50, ge=1, le=MAX_GROUP_STEPS, strict=True, description="optimizer steps of each job")


class SweepRange(BaseModel):
    """Where values are drawn from: whole numbers where both ends are. With `log`, small values are as likely as large
    ones."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    min: Annotated[int, Field(strict=True)] | float = Field(description="the least value")
    max: Annotated[int, Field(strict=True)] | float = Field(description="the largest value")
    log: bool = Field(False, strict=True, description="small values are as likely as large ones")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.min > self.max:
            raise ValueError("min is above max; swap them")
        if self.log and self.min <= 0:
            raise ValueError("min is above 0 where log is set")
        return self

    @property
    def is_whole(self) -> bool:
        return isinstance(self.min, int) and isinstance(self.max, int)


def _choice_or_range(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """One error for the whole union, at the field itself."""
    try:
        return check(value)
    except ValidationError as error:
        own = [detail["msg"] for detail in error.errors() if detail["type"] == "value_error"]
        words = own[0].removeprefix("Value error, ") if own else ""
        raise ValueError(words or 'a list of values, or {"min": 0.001, "max": 0.1, "log": true}') from None


Choices = Annotated[list[Any], Field(min_length=1, max_length=MAX_TRIALS)]
ChoicesOrRange = Annotated[Choices | SweepRange, WrapValidator(_choice_or_range)]


class SweepRequest(_GroupRequest):
    """A spec, and what values to put into it: either all of a `grid`, or `trials` of what `random` may draw."""

    grid: Annotated[dict[SpecPath, Choices], Field(min_length=1, max_length=MAX_PATHS)] | None = Field(
        None, description="values by the path of their field"
    )
    random: Annotated[dict[SpecPath, ChoicesOrRange], Field(min_length=1, max_length=MAX_PATHS)] | None = Field(
        None, description="values, or a range of them, by the path of their field"
    )
    search: Literal["grid", "random", "optuna"] | None = Field(
        None,
        description="by default what fits to the values; `optuna` chooses the next values of `random` by the trials "
        "that have ended",
    )
    trials: int | None = Field(None, ge=1, le=MAX_TRIALS, strict=True, description="how many jobs, with `random`")
    seed: int = Field(0, ge=0, le=2**63 - 1, strict=True, description="the same seed draws the same values")
    metric: str = Field("loss", max_length=200, pattern=_METRIC, description="by what the best trial is chosen")
    mode: Literal["min", "max"] | None = Field(None, description="by default min for the loss, and max for others")
    max_concurrent: int = Field(1, ge=1, le=MAX_TRIALS, strict=True, description="jobs that may run at the same time")
    steps: int | None = Field(
        None,
        ge=1,
        le=MAX_GROUP_STEPS,
        strict=True,
        description="optimizer steps of each job; left out: as the spec says",
    )

    @property
    def field(self) -> str:
        """Of its values."""
        return "grid" if self.grid is not None else "random"

    @property
    def chosen_search(self) -> str:
        return self.search or self.field

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self.grid or self.random or ())

    @property
    def chosen_mode(self) -> str:
        return self.mode or ("min" if self.metric == "loss" else "max")


def parse_comparison(body: bytes) -> ComparisonRequest:
    """Raises MalformedJson, InvalidRequest."""
    problem = "the comparison is not valid"
    _refuse_long(body, problem)
    wanted = parse_body(ComparisonRequest, body, problem)
    for field in ("strategies", "devices"):
        values = getattr(wanted, field)
        if len(set(values)) < len(values):
            raise InvalidRequest(problem, fields=(FieldError(field, "name each one once"),))
    return wanted


def _refuse_long(body: bytes, problem: str) -> None:
    if body.count(b",") > MAX_SPEC_VALUES:
        raise InvalidRequest(f"{problem}: it may have {MAX_SPEC_VALUES} values at most")


def parse_sweep(body: bytes) -> SweepRequest:
    """Raises MalformedJson, InvalidRequest."""
    _refuse_long(body, "the sweep is not valid")
    wanted = parse_body(SweepRequest, body, "the sweep is not valid")
    wrong = list(_wrong_of_sweep(wanted))
    if wrong:
        raise InvalidRequest("the sweep is not valid", fields=tuple(wrong))
    return wanted


def _wrong_of_sweep(wanted: SweepRequest) -> Iterator[FieldError]:
    if (wanted.grid is None) == (wanted.random is None):
        yield FieldError("grid", "give either `grid` or `random`, with values by the paths of their fields")
    elif wanted.search is not None and (wanted.search == "grid") != (wanted.grid is not None):
        yield FieldError("search", f"the values are in `{wanted.field}`; leave it out")
    if wanted.grid is not None and wanted.trials is not None:
        yield FieldError("trials", "a grid has as many as its values make; leave it out")
    if wanted.random is not None and wanted.trials is None:
        yield FieldError("trials", "say how many to draw")
