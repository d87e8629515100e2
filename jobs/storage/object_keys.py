"""How paths of files are mapped to keys of objects.

A key is the path, with the few characters replaced that object stores take for something else: `\\` is a `/` to some,
and control characters are no part of a key. U+F025 and two hexadecimal digits stand for them, and for U+F025 itself, so
two paths never have one key.
"""

import re

SEGMENTS = "/.segments/"
#: In the private use area, where other programs have their substitutes of such characters.
_MARK = "\uf025"
_REPLACED = re.compile(rf"[\x01-\x1f\x7f\\{_MARK}]")
_SUBSTITUTE = re.compile(rf"{_MARK}([0-9a-f]{{2}})")
_SEGMENT = re.compile(r"(.+)/\.segments/(\d{20})", re.DOTALL)


def key_of(path: str) -> str:
    return _REPLACED.sub(lambda found: f"{_MARK}{0 if found[0] == _MARK else ord(found[0]):02x}", path)


def path_of(key: str) -> str:
    return _SUBSTITUTE.sub(lambda found: chr(int(found[1], 16)) if found[1] != "00" else _MARK, key)


def segment_key(path: str, begins: int) -> str:
    """That of a piece of a file that is appended to."""
    return f"{key_of(path)}{SEGMENTS}{begins:020}"


def parse_key(key: str) -> tuple[str, int | None]:
    """The path of the file that an object is of, and where it begins there; None: it is the file."""
    match = _SEGMENT.fullmatch(key)
    return (path_of(key), None) if match is None else (path_of(match[1]), int(match[2]))
