"""Messages about checkpoints for the job's log, which wait until the supervisor's loop writes them."""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from jobs.protocol.packets import SingleRecord, StepBatch
from jobs.protocol.records import Note

#: Of the spec, for notes in the report.
NOTE_FIELD = "program.checkpoint"
#: Messages that may wait; older ones are dropped.
MAX_MESSAGES = 100


@dataclass(frozen=True, slots=True)
class CheckpointMessage:
    """What the job's user should know of a checkpoint."""

    text: str
    failed: bool


class MessageSink(Protocol):
    def log_line(self, text: str) -> None: ...

    def add_record(self, rank: int, record: StepBatch | SingleRecord) -> None: ...


class MessageQueue:
    """Any thread may add messages; the supervisor's loop takes them."""

    def __init__(self) -> None:
        self._messages: deque[CheckpointMessage] = deque(maxlen=MAX_MESSAGES)

    def add_message(self, text: str) -> None:
        self._messages.append(CheckpointMessage(text, failed=False))

    def add_failure(self, step: int, why: str) -> None:
        self._messages.append(CheckpointMessage(f"checkpoint of step {step} could not be saved: {why}", failed=True))

    def take_all(self) -> list[CheckpointMessage]:
        return [self._messages.popleft() for _ in range(len(self._messages))]


def report_messages(messages: list[CheckpointMessage], sink: MessageSink) -> None:
    """Write messages to the job's log, and those of failures to the report as well."""
    for message in messages:
        sink.log_line(message.text)
        if message.failed:
            sink.add_record(0, Note(NOTE_FIELD, message.text))
