"""What the gate says about a job: whether its report keeps within the limits that were given."""

from typing import Literal

import msgspec

Outcome = Literal["passed", "broken", "unclear"]


class GateCheck(msgspec.Struct, frozen=True):
    """One limit. `name` is its field of the request, with the code behind it for findings: `no_finding.slow-device`.

    `figure` is what was found, and lies with 95 % certainty between `low` and `high`, which are null where it was
    counted. `unclear`: the limit lies between the two, or there is no figure; `message` says why.
    """

    name: str
    outcome: Outcome
    message: str
    figure: float | None = None
    limit: float | None = None
    low: float | None = None
    high: float | None = None


class GateVerdict(msgspec.Struct, frozen=True):
    """`broken` if one of the checks is, else `unclear` if one is, else `passed`. `against` is the other job."""

    job_id: str
    attempt: int
    outcome: Outcome
    checks: tuple[GateCheck, ...]
    against: str | None = None
