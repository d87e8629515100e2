"""A job's status as text for the terminal."""

from typing import TYPE_CHECKING, Any

from shardyard import formatting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardyard.contract.responses import CheckpointView, JobStatus, JobSummary, PlacementView, Progress


#: Of the column in front of the values, with the space behind it.
LABEL_WIDTH = 11
#: Of the newest attempt.
NETWORKS = {"none": "none (its own loopback only)", "host": "the node's"}


def status_lines(status: "JobStatus") -> list[tuple[str, str]]:
    """A job's status as (label, value) lines, without values that are not known yet."""
    started = formatting.seconds_between(status.created_at, status.started_at) if status.started_at else None
    took = formatting.seconds_between(status.started_at, status.finished_at) if status.finished_at else None
    devices = formatting.count_noun(status.devices, "device")
    if status.nodes > 1:
        devices += f" on each of {status.nodes} nodes"
    lines = {
        "job": f"{status.name}  {status.id}",
        "state": state_and_reason(status),
        "owner": status.owner and f"{status.owner} of tenant {status.tenant}",
        "asks for": f"{devices} of pool {status.pool}, {status.strategy}",
        "rehearsal": status.rehearsal and "REHEARSAL: its devices only act as GPUs",
        "start": status.start,
        "queue": status.queue_position and f"position {status.queue_position}",
        "network": NETWORKS.get(status.network or ""),
        "runs on": placement_text(status.placement),
        "progress": status.progress and progress_text(status.progress),
        "checkpoint": status.checkpoint and checkpoint_text(status.checkpoint),
        "created": formatting.local_time(status.created_at),
        "started": status.started_at
        and f"{formatting.local_time(status.started_at)}, after {formatting.format_duration(started)}",
        "finished": status.finished_at
        and f"{formatting.local_time(status.finished_at)}, after {formatting.format_duration(took)}",
        "archived": status.archived and "yes; `shardyard list --archived` shows it",
        "attempts": status.attempt > 1 and str(status.attempt),
        "result": status.result and result_text(status.result),
        "error": status.error and error_text(status.error),
        "advice": status.error and status.error.get("advice"),
    }
    return [(label, value) for label, value in lines.items() if value]


def placement_text(places: "Sequence[PlacementView]") -> str:
    """Nodes with their devices; of several nodes a line for each, with its ranks where they are known."""
    words = formatting.place_names(places)
    if len(words) < 2:
        return "".join(words)
    ranks = [f"  {describe_ranks(place.ranks)}" if place.ranks else "" for place in places]
    return f"\n{' ' * LABEL_WIDTH}".join(f"{node}{numbers}" for node, numbers in zip(words, ranks, strict=True))


def describe_ranks(ranks: "Sequence[int]") -> str:
    """`rank 3`, or `ranks 8-15`: those of a node follow one another."""
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]}-{ranks[-1]}"


def progress_text(progress: "Progress") -> str:
    """One line: epoch, step (or whatever a script counts), rows a second, ETA, loss; only what is known."""
    parts = []
    for noun, done, total in (("epoch", "epoch", "epochs"), (progress.unit or "step", "step", "steps")):
        if (at := getattr(progress, done)) is not None:
            parts.append(f"{noun} {at}" + (f"/{getattr(progress, total)}" if getattr(progress, total) else ""))
    if progress.source in ("job", "tqdm") and progress.steps_seen:  # what they count may be anything
        parts.append(formatting.count_noun(progress.steps_seen, "training step"))
    if progress.rows_per_second:
        parts.append(f"{formatting.format_number(progress.rows_per_second)} rows/s")
    if progress.eta_seconds:
        parts.append(f"ETA {formatting.format_duration(progress.eta_seconds)}")
    if progress.loss is not None:
        parts.append(f"loss {formatting.format_number(progress.loss)}")
    return "  ".join(parts)


def checkpoint_text(found: "CheckpointView") -> str:
    when = formatting.local_time(found.saved_at)
    return f"step {formatting.format_number(found.step)}, saved {when} by attempt {found.attempt}"


def result_text(result: dict[str, Any]) -> str:
    """The loss and the metrics; empty where there are none, as of a job that only runs forward."""
    numbers = {"loss": result.get("loss")} | (result.get("metrics") or {})
    return ", ".join(
        f"{name} {formatting.format_number(value)}" for name, value in numbers.items() if value is not None
    )


def error_text(error: dict[str, Any]) -> str:
    """The error's traceback, which ends with the message, else the message."""
    message = str(error.get("message") or error)
    return str(error.get("traceback") or "").rstrip() or message


def state_and_reason(status: "JobSummary") -> str:
    """The state, followed by the reason if that adds something."""
    message = status.reason.message
    return f"{status.state}: {message}" if message and message != status.state else status.state
