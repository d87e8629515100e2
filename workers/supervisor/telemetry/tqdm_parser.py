"""Parses tqdm's progress bars in the output of a program.

tqdm draws a bar as `\\r` and `desc:  40%|####      | 4/10 [00:01<00:02,  2.00it/s, loss=0.5]`, without a known end as
`desc: 4it [00:01, 2.00it/s]`. A bar inside another one is drawn a line below it, and `\\x1b[A` leads back up: so the
number of those behind a bar is its depth.
"""

import re
from dataclasses import dataclass

_NUMBER = r"(\d+(?:\.\d+)?)([kMGTPEZY]?)"
_CLOCK = r"(?:\d+ days?, )?(?:\d+:)?\d\d:\d\d"
#: After the time comes a rate such as "2.00it/s", "1.50s/batch" or "?it/s". A narrow terminal cuts it off.
_RATE = r"(?:, +(?:\?|[\d.]+[kMGTPEZY]?)(?: ?(?P<unit>[^\s/,\]]+)/s|s/ ?(?P<slow>[^\s,\]]+)))"
_KNOWN = re.compile(
    rf"\d{{1,3}}%(?:\|[^|]*\|| ) *(?P<done>{_NUMBER})/(?P<total>{_NUMBER}) \[{_CLOCK}<(?P<left>\?|{_CLOCK}){_RATE}?"
)
_UNKNOWN = re.compile(rf"(?:^|: )(?P<done>{_NUMBER})(?P<word> ?[^\s\d%|]\S*) \[{_CLOCK}{_RATE}")
_PIECES = re.compile(r"[\r\n]+|((?:\x1b\[A)+)")
_SCALE = " kMGTPEZY"
MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class TqdmBar:
    """`total` and `left_seconds` are `None` where the end is not known."""

    done: int
    total: int | None
    unit: str
    left_seconds: int | None


class TqdmBars:
    """The bars that one stream of one process has open, outermost first."""

    def __init__(self) -> None:
        self._open: dict[int, TqdmBar] = {}

    @property
    def open_bars(self) -> tuple[TqdmBar, ...]:
        return tuple(bar for _, bar in sorted(self._open.items()))

    def read_text(self, text: str) -> None:
        """Parse text that was printed; the same text may come again."""
        pieces = _PIECES.split(text)
        for piece, up in zip(pieces[::2], [*pieces[1::2], None], strict=True):
            bar = parse_bar(piece)
            if bar is None:
                continue
            depth = min(len(up or "") // len("\x1b[A"), MAX_DEPTH)
            self._open = {place: other for place, other in self._open.items() if place < depth}
            self._open[depth] = bar


def parse_bar(line: str) -> TqdmBar | None:
    """The bar that a line shows; `None` when it shows none."""
    known = _KNOWN.search(line)
    if known is not None:
        unit = known["unit"] or known["slow"] or "it"
        return TqdmBar(_parse_count(known["done"]), _parse_count(known["total"]), unit, _parse_clock(known["left"]))
    unknown = _UNKNOWN.search(line)
    if unknown is not None:
        return TqdmBar(_parse_count(unknown["done"]), None, unknown["word"].strip(), None)
    return None


def _parse_count(text: str) -> int:
    """A count, which tqdm may write as 1.50M."""
    scale = _SCALE.index(text[-1]) if text[-1] in _SCALE else 0
    return round(float(text[:-1] if scale else text) * 10.0 ** (3 * scale))


def _parse_clock(clock: str) -> int | None:
    if clock == "?":
        return None
    days, _, rest = clock.rpartition(", ")
    seconds = 0
    for part in rest.split(":"):
        seconds = seconds * 60 + int(part)
    return seconds + 86_400 * (int(days.split()[0]) if days else 0)
