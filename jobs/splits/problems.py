"""What a check of a split finds, before a suggestion is made."""

from dataclasses import dataclass, field

from shardyard.contract.report import Severity


@dataclass(frozen=True, slots=True)
class SplitProblem:
    """A finding without its suggestion."""

    code: str
    severity: Severity
    message: str
    numbers: dict[str, float] = field(default_factory=dict)
