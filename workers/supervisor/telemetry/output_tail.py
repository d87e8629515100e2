"""The end of what a program has printed: its last line, and its progress bars."""

import re
from dataclasses import dataclass, field

from jobs.files.log_file import StreamName
from workers.supervisor.telemetry.tqdm_parser import Bar, Bars

#: Kept of each source; a bar is drawn ten times a second at most, a few hundred bytes each time.
KEPT_BYTES = 4096
#: A program's own words come before those of the libraries that warn on stderr.
_STREAMS: tuple[StreamName, ...] = ("stdout", "stderr")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(slots=True)
class _Tail:
    text: bytearray = field(default_factory=bytearray)
    bars: Bars = field(default_factory=Bars)
    fresh: bool = False


class Tails:
    """Fed with every piece of output; looks at it only when asked, so that a flood costs next to nothing."""

    def __init__(self) -> None:
        self._tails: dict[tuple[StreamName, int, int], _Tail] = {}
        self._latest: dict[StreamName, _Tail] = {}

    def output(self, device: int, stream: StreamName, rank: int, data: bytes) -> None:
        tail = self._tails.setdefault((stream, rank, device), _Tail())
        tail.text += data[-KEPT_BYTES:]
        del tail.text[:-KEPT_BYTES]
        tail.fresh = True
        if not data.isspace():
            self._latest[stream] = tail

    def last_line(self) -> str:
        """The last line that is not blank, "" where there is none."""
        for stream in _STREAMS:
            if stream in self._latest:
                lines = [_CONTROL.sub("", line).strip() for line in re.split(r"[\r\n]", _text(self._latest[stream]))]
                return next((line for line in reversed(lines) if line), "")
        return ""

    def bars(self) -> tuple[Bar, ...]:
        """The open bars of the first rank that shows any, outermost first."""
        for _, tail in sorted(self._tails.items(), key=lambda entry: entry[0][1]):
            if tail.fresh:
                tail.fresh = False
                tail.bars.read(_text(tail))
            if tail.bars.open:
                return tail.bars.open
        return ()


def _text(tail: _Tail) -> str:
    """What is kept, from the first line that is whole."""
    text = tail.text.decode("utf-8", "replace")
    if len(tail.text) < KEPT_BYTES:
        return text
    starts = [place for place in (text.find("\r"), text.find("\n")) if place >= 0]
    return text[min(starts) :] if starts else text
