"""Compares the rows of a step and the learning rates of two runs."""

import math

from shardyard.contract.report import Finding

CODE = "global-batch-grew"
#: A step of one run has so many times the rows of one of the other.
GREW_FROM = 1.5


def find_batch_growth(
    rows: int | None, rate: float | None, rows_before: int | None, rate_before: float | None
) -> Finding | None:
    """Whether a step has many more rows than in another run, at the same learning rate. Nothing is changed for it: the
    finding has both numbers, and what the linear rule says."""
    if not rows or not rows_before or rate is None or rate_before is None:
        return None
    ratio = rows / rows_before
    if ratio < GREW_FROM or not rate or not math.isclose(rate, rate_before, rel_tol=1e-6):
        return None
    return Finding(
        CODE,
        "warning",
        f"a step has {rows:,} rows here and {rows_before:,} in the other job, {ratio:.3g} times as many, at the same "
        f"learning rate of {rate:.6g}: the two do not train alike",
        f"choose a learning rate for {rows:,} rows (the linear rule, made for SGD with a warm-up, says "
        f"{rate * ratio:.4g}), or keep {rows_before:,} rows a step",
        numbers={
            "rows": rows,
            "rows_before": rows_before,
            "ratio": round(ratio, 4),
            "learning_rate": rate,
            "linear_learning_rate": rate * ratio,
        },
    )
