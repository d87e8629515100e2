"""Which streams of a log a request wants: those that it names, or those that suit the job's program."""

from jobs.files.log_file import STREAMS, StreamName
from jobs.model.spec import JobSpec, ScriptProgram
from shardyard.contract.errors import FieldError, InvalidRequest

LogStreams = frozenset[StreamName]

ALL_STREAMS: LogStreams = frozenset(STREAMS)
#: A script prints its own lines; there are often hundreds of times as many shard lines.
SCRIPT_STREAMS: LogStreams = ALL_STREAMS - {"shard"}


def parse_streams(text: str) -> LogStreams | None:
    """The value of `stream`: `all`, or names as in `stdout,shard`; None where it is empty.

    Raises:
        InvalidRequest: it is something else.
    """
    if not text:
        return None
    if text == "all":
        return ALL_STREAMS
    chosen = frozenset(stream for stream in STREAMS if stream in text.split(","))
    if len(chosen) < len(set(text.split(","))):
        raise InvalidRequest(
            "`stream` does not say which lines are wanted",
            fields=(FieldError("stream", f"write all, or some of {', '.join(STREAMS)}, comma-separated"),),
        )
    return chosen


def stream_names(streams: LogStreams) -> list[str]:
    return [stream for stream in STREAMS if stream in streams]


def default_streams(spec: JobSpec) -> LogStreams:
    """What a request gets that names no stream: of a recipe everything, since shard lines are what it prints."""
    return SCRIPT_STREAMS if isinstance(spec.program, ScriptProgram) else ALL_STREAMS
