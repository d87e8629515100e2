"""What is wrong with a split for BatchNorm layers, which take their statistics from the rows of each device alone."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.splits.problems import SplitProblem
from shardyard.contract.report import describe_rows

#: So many rows on a device, or fewer, make noisy statistics.
SMALL_SHARD = 8


@dataclass(frozen=True, slots=True)
class NormFacts:
    """A model with so many BatchNorm layers that are not synchronised. `values_per_row` are the values of each row, in
    a channel, of the layer that has the fewest; `None` where that is not known."""

    inside: str
    layers: int
    values_per_row: int | None = None


def small_shard_problem(norms: NormFacts, full: Sequence[int]) -> SplitProblem | None:
    """`full` are the rows of each device in the largest batch."""
    rows, total = max(full), sum(full)
    devices = sum(count > 0 for count in full)
    if devices < 2 or rows > SMALL_SHARD or total <= SMALL_SHARD:
        return None
    layers = "a BatchNorm layer" if norms.layers == 1 else f"{norms.layers} BatchNorm layers"
    return SplitProblem(
        "batchnorm-small-shard",
        "warning",
        f"{norms.inside} has {layers}, whose statistics each device takes from its own rows: from "
        f"{rows} of the {total} of a batch ({describe_rows(full)}), so they are noisier than on one device",
        {"layers": norms.layers, "rows_per_device": rows, "batch_rows": total, "devices": devices},
    )


def one_row_problem(norms: NormFacts, counts: Sequence[int], step: int | None) -> SplitProblem | None:
    """A device that gets a single row in a step, where a layer has one value of it in each channel."""
    if norms.values_per_row != 1 or 1 not in counts:
        return None
    device = counts.index(1)
    where = "a step" if step is None else f"step {step}"
    who = f"device {device} gets exactly one row" if len(counts) > 1 else "the batch has exactly one row"
    return SplitProblem(
        "one-row-shard",
        "warning",
        f"in {where} {who} ({describe_rows(counts)}), and BatchNorm in {norms.inside} cannot train on one value per "
        "channel: the job fails there",
        {"device": device, "rows": 1, "step": step or 0},
    )
