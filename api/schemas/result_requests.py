"""Request bodies about the results of jobs: gates on their reports, and profiles."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.request_body import parse_body
from jobs.model.error_words import unknown_name
from jobs.protocol.profiles import DEFAULT_PROFILE_STEPS, MAX_PROFILE_STEPS
from jobs.splits.gates.limits import ANY_WARNING, GateLimits
from shardyard.contract.errors import FieldError, InvalidRequest
from shardyard.contract.finding_codes import FINDING_CODES
from shardyard.formatting import is_whole_id

#: Of a gate: more than any figure of a report.
_MAX_LIMIT = 1e15
Ratio = Annotated[float | None, Field(gt=0, le=_MAX_LIMIT, allow_inf_nan=False)]


class ProfileRequestBody(BaseModel):
    """How many steps each rank records."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(DEFAULT_PROFILE_STEPS, ge=1, le=MAX_PROFILE_STEPS, strict=True)


class GateRequest(BaseModel):
    """Limits that a job's report is to keep; at least one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_time_imbalance: Ratio = Field(
        None, description="the busiest device's time over the mean of all, as balance.time_max_over_mean; 1 is even"
    )
    max_row_imbalance: Ratio = Field(None, description="the same of rows, as balance.rows_max_over_mean")
    max_idle: int | None = Field(
        None, ge=0, le=2**53, description="steps in which a device got nothing, as balance.idle_device_steps"
    )
    min_throughput: Ratio = Field(None, description="rows per second of all devices, as rows_per_second")
    max_memory: int | None = Field(
        None, ge=1, le=2**53, description="bytes, as the largest per_device.memory_peak_bytes"
    )
    no_finding: list[Annotated[str, Field(max_length=63)]] = Field(
        [], max_length=64, description="codes of findings that the report must not have; warning: any of that severity"
    )
    against: str | None = Field(None, max_length=64, description="id of another job, for max_slowdown")
    max_slowdown: Ratio = Field(None, description="time of a step over that of the job `against`; 1.05: 5 % slower")


def parse_profile(body: bytes) -> int:
    """The steps of a request for a profile. Raises MalformedJson, InvalidRequest."""
    return parse_body(ProfileRequestBody, body.strip() or b"{}", "the profile request is not valid").steps


def parse_gate(body: bytes) -> tuple[GateLimits, str | None]:
    """The limits, and the id of the job to compare with. Raises MalformedJson, InvalidRequest."""
    problem = "the gate is not valid"
    wanted = parse_body(GateRequest, body.strip() or b"{}", problem)
    given = wanted.model_dump(exclude={"against"})
    limits = GateLimits(**given | {"no_finding": tuple(dict.fromkeys(wanted.no_finding))})
    wrong = list(_wrong_of_gate(limits, wanted.against))
    if wrong:
        raise InvalidRequest(problem, fields=tuple(wrong))
    return limits, wanted.against


def _wrong_of_gate(limits: GateLimits, against: str | None) -> Iterator[FieldError]:
    for index, code in enumerate(limits.no_finding):
        if code not in FINDING_CODES | {ANY_WARNING}:
            yield FieldError(f"no_finding.{index}", unknown_name(code, sorted(FINDING_CODES), "finding"))
    if against is not None and limits.max_slowdown is None:
        yield FieldError("max_slowdown", "say how much slower than the job `against` it may be, such as 1.05")
    if against is not None and not is_whole_id(against):
        yield FieldError("against", "the whole id of a job")
    if against is None and limits.max_slowdown is not None:
        yield FieldError("against", "name the job that `max_slowdown` compares with")
    if limits == GateLimits():
        fields = [name for name in GateRequest.model_fields if name != "against"]
        yield FieldError("max_time_imbalance", f"give at least one limit: {', '.join(fields)}")
