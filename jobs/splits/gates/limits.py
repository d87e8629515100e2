"""The limits of a gate, by the names that its request has for them."""

from dataclasses import dataclass

#: In place of the code of a finding: any that is a warning.
ANY_WARNING = "warning"


@dataclass(frozen=True, slots=True)
class GateLimits:
    """None: no limit. `max_slowdown` is on the time of a step, as a multiple of another job's."""

    max_time_imbalance: float | None = None
    max_row_imbalance: float | None = None
    max_idle: int | None = None
    min_throughput: float | None = None
    max_memory: int | None = None
    max_slowdown: float | None = None
    no_finding: tuple[str, ...] = ()
