"""Splits the bytes of one pipe into lines; the bytes may come in pieces of any size."""

from jobs.files.log_file import CONTINUED, MAX_LINE_BYTES, REDRAWN, UNENDED

#: Texts that share their flags.
SplitLines = list[tuple[list[bytes], int]]


class LineSplitter:
    """The unfinished line of one source.

    Only `\\n` ends a line; every other byte is kept in its text, `\\r` of `\\r\\n` too. A line of more than
    `MAX_LINE_BYTES` is split there, and all parts but the last are flagged `CONTINUED`. So the lines depend on the
    bytes alone, not on how they were cut.

    A progress bar that redraws itself with `\\r` would show nothing until its end. `take_redrawn` therefore returns
    what is pending, as one line flagged `REDRAWN`; the relay calls it at most once a second.
    """

    def __init__(self) -> None:
        self._pending = bytearray()

    def add_bytes(self, data: bytes) -> SplitLines:
        """The lines that `data` completes."""
        if len(self._pending) + len(data) > MAX_LINE_BYTES:
            return self._add_long(data)
        head, newline, rest = data.partition(b"\n")
        if not newline:
            self._pending += head
            return []
        texts = rest.split(b"\n")
        texts.insert(0, bytes(self._pending) + head)
        self._pending = bytearray(texts.pop())
        return [(texts, 0)]

    def _add_long(self, data: bytes) -> SplitLines:
        """As `add_bytes`, where a line may be too long."""
        found: SplitLines = []
        *ended, rest = data.split(b"\n")
        for text in ended:
            self._pending += text
            found += self._split_pending()
            found.append(([bytes(self._pending)], 0))
            self._pending.clear()
        self._pending += rest
        return found + self._split_pending()

    def _split_pending(self) -> SplitLines:
        found: SplitLines = []
        while len(self._pending) > MAX_LINE_BYTES:
            found.append(([bytes(self._pending[:MAX_LINE_BYTES])], CONTINUED))
            del self._pending[:MAX_LINE_BYTES]
        return found

    @property
    def is_redrawing(self) -> bool:
        """Whether the unfinished line holds a `\\r` that is no start of `\\r\\n`."""
        return b"\r" in self._pending[:-1]

    def take_redrawn(self) -> SplitLines:
        """The state of a progress bar up to now. A last `\\r` waits, since `\\n` may follow it."""
        kept = 1 if self._pending.endswith(b"\r") else 0
        text = bytes(self._pending[: len(self._pending) - kept])
        del self._pending[: len(text)]
        return [([text], REDRAWN)]

    def take_unended(self) -> SplitLines:
        """The last line, if it had no newline."""
        text = bytes(self._pending)
        self._pending.clear()
        return [([text], UNENDED)] if text else []
