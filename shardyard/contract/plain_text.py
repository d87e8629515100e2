"""Characters that a name must not have, since screens obey them; removes them from the text of users and jobs.

These are the control characters of terminals (C0 and C1), the marks that turn the writing direction, so that a name
reads as another one, separators of lines and paragraphs, the mark that has no width, and halves of characters, which
cannot be sent. Python also keeps the bytes of a file's name that are not UTF-8 as such halves.
"""

import re
import unicodedata
from typing import Final

#: First and last code points.
_RANGES: Final = (
    *((0x00, 0x1F), (0x7F, 0x9F), (0x061C, 0x061C), (0x200E, 0x200F), (0x2028, 0x2029), (0x202A, 0x202E)),
    *((0x2066, 0x2069), (0xFEFF, 0xFEFF)),
)
_HALVES: Final = (0xD800, 0xDFFF)
_CLASS: Final = "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in _RANGES)
_UNSAFE: Final = re.compile(f"[{_CLASS}\\u{_HALVES[0]:04x}-\\u{_HALVES[1]:04x}]")
#: For `str.translate`: takes them out, but for tabs.
WITHOUT_UNSAFE: Final[dict[int, None]] = {
    code: None for first, last in (*_RANGES, _HALVES) for code in range(first, last + 1) if code != ord("\t")
}
#: What Python makes of the bytes 0x80 to 0xff of a name that is not UTF-8.
_FIRST_BYTE, _LAST_BYTE, _BYTE_OFFSET = 0xDC80, 0xDCFF, 0xDC00


def find_unsafe(text: str) -> str | None:
    """The first character that a name must not have; None where there is none."""
    if text.isprintable():
        return None
    found = _UNSAFE.search(text)
    return found[0] if found else None


def describe_unsafe(character: str) -> str:
    """What is wrong with a name that has this character, as the end of a sentence: `holds U+202E (RIGHT-TO-LEFT
    OVERRIDE), ...`."""
    unnamed = "half of a character" if "\ud800" <= character <= "\udfff" else "a control character"
    name = unicodedata.name(character, unnamed)
    return f"holds U+{ord(character):04X} ({name}), which is not shown as it is; leave it out"


def escape_unsafe(text: str, keep: str = "") -> str:
    """Text as it can be shown: what a name must not have is written as `\\x1b` or `\\u202e`, but for the characters in
    `keep`."""
    if text.isprintable():
        return text
    return _UNSAFE.sub(lambda found: found[0] if found[0] in keep else _escape(ord(found[0])), text)


def _escape(code: int) -> str:
    if _FIRST_BYTE <= code <= _LAST_BYTE:
        code -= _BYTE_OFFSET
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
