"""Elements of XML and HTML as strings. All text and attributes are escaped.

Names, labels and notes are untrusted: control characters, which XML forbids, and marks that change the writing
direction are written out. The result is both well-formed XML and valid HTML.
"""

import unicodedata
from collections.abc import Iterable
from typing import Final

from shardyard.contract.plain_text import escape_unsafe


class Markup(str):
    """Text that is markup already. Any other text is escaped where it goes into an element."""

    __slots__ = ()


_ESCAPES: Final = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})

#: HTML has no end tag for these, and needs one for all others, empty or not.
_VOID: Final = frozenset({"meta", "input", "rect", "line", "path"})


def clean_text(words: str) -> str:
    """Text in which control characters and marks that change the writing direction are written out (`\\u202e`), and
    which has no code points that XML forbids."""
    if words.isascii() and words.isprintable():
        return words
    return "".join(letter for letter in escape_unsafe(words, keep="\t\n") if not _is_no_character(ord(letter)))


def escape_text(words: str) -> Markup:
    return Markup(clean_text(words).translate(_ESCAPES))


def coordinate(value: float) -> str:
    """A coordinate with at most one digit behind the point."""
    return f"{value:.1f}".removesuffix(".0")


def element(tag: str, /, *children: str | Markup | None, **attributes: str | float | bool | None) -> Markup:
    """Children that are not markup are escaped; None is left out. So is an attribute that is None or False; `_` in its
    name becomes `-`, and one at its end goes (`class_`)."""
    opening = tag + "".join(_attribute_text(attributes))
    inside = "".join(
        child if isinstance(child, Markup) else escape_text(child) for child in children if child is not None
    )
    if not inside and tag in _VOID:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{inside}</{tag}>")


def join_markup(parts: Iterable[Markup]) -> Markup:
    return Markup("".join(parts))


def _attribute_text(given: dict[str, str | float | bool | None]) -> Iterable[str]:
    for name, value in given.items():
        if value is None or value is False:
            continue
        shown = name.removesuffix("_").replace("_", "-")
        words = shown if value is True else escape_text(value) if isinstance(value, str) else coordinate(value)
        yield f' {shown}="{words}"'


def _is_no_character(point: int) -> bool:
    return point & 0xFFFE == 0xFFFE or 0xFDD0 <= point <= 0xFDEF


# -- how wide text is ------------------------------------------------------------------------------


def text_width(words: str, size: float) -> float:
    """A generous estimate of the width of text in a sans-serif font of `size`; fonts cannot be measured here."""
    return sum(_letter_width(letter) for letter in words) * size


def _letter_width(letter: str) -> float:
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    if unicodedata.combining(letter):
        return 0.0
    if letter in "ijlt.,:;|!'()[] f":
        return 0.36
    return 0.86 if letter in "mwMW@%" else 0.68 if letter.isupper() else 0.6


def fit_text(words: str, size: float, room: float) -> str:
    """Text that fits into `room`; longer text is cut and ends with "…"."""
    words = clean_text(words).replace("\n", " ").replace("\t", " ")
    if text_width(words, size) <= room:
        return words
    end = len(words)
    while end and text_width(words[:end], size) + size * 0.8 > room:
        end -= 1
    return words[:end].rstrip() + "…"


def wrap_text(words: str, size: float, room: float, lines: int) -> list[str]:
    """Text in at most so many lines of `room`; the last one ends with "…" when that is not enough."""
    made: list[str] = []
    rest = clean_text(words).split()
    while rest and len(made) < lines:
        taken = 1
        while taken < len(rest) and text_width(" ".join(rest[: taken + 1]), size) <= room:
            taken += 1
        if len(made) == lines - 1:
            taken = len(rest)
        made.append(fit_text(" ".join(rest[:taken]), size, room))
        rest = rest[taken:]
    return made
