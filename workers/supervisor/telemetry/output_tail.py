"""Keeps the end of a program's output: its last line, and its progress bars."""

import re
from dataclasses import dataclass, field

from jobs.files.log_file import StreamName
from workers.supervisor.telemetry.tqdm_parser import TqdmBar, TqdmBars

#: Kept of each source; a bar is drawn ten times a second at most, a few hundred bytes each time.
KEPT_BYTES = 4096
#: What a program prints to stdout comes before the warnings of libraries on stderr.
_STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(slots=True)
class _OutputTail:
    text: bytearray = field(default_factory=bytearray)
    open_bars: TqdmBars = field(default_factory=TqdmBars)
    fresh: bool = False


class OutputTails:
    """Receives every piece of output, and parses it only on request, so that a flood costs next to nothing."""

    def __init__(self) -> None:
        self._tails: dict[tuple[StreamName, int, int], _OutputTail] = {}
        self._latest: dict[StreamName, _OutputTail] = {}

    def add_output(self, device: int, stream: StreamName, rank: int, data: bytes) -> None:
        tail = self._tails.setdefault((stream, rank, device), _OutputTail())
        tail.text += data[-KEPT_BYTES:]
        del tail.text[:-KEPT_BYTES]
        tail.fresh = True
        if not data.isspace():
            self._latest[stream] = tail

    def last_line(self) -> str:
        """The last line that is not blank, "" where there is none."""
        for stream in _STREAMS:
            if stream in self._latest:
                lines = [
                    _CONTROL.sub("", line).strip() for line in re.split(r"[\r\n]", _whole_lines(self._latest[stream]))
                ]
                return next((line for line in reversed(lines) if line), "")
        return ""

    def open_bars(self) -> tuple[TqdmBar, ...]:
        """The open bars of the first rank that shows any, outermost first."""
        for _, tail in sorted(self._tails.items(), key=lambda entry: entry[0][1]):
            if tail.fresh:
                tail.fresh = False
                tail.open_bars.read_text(_whole_lines(tail))
            if tail.open_bars.open_bars:
                return tail.open_bars.open_bars
        return ()


def _whole_lines(tail: _OutputTail) -> str:
    """The kept text, from its first complete line on."""
    text = tail.text.decode("utf-8", "replace")
    if len(tail.text) < KEPT_BYTES:
        return text
    starts = [place for place in (text.find("\r"), text.find("\n")) if place >= 0]
    return text[min(starts) :] if starts else text
