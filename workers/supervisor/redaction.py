"""Replaces the values of an attempt's secrets by `[secret NAME]` in all that its ranks print and send.

A value is found as it is, and as programs usually write it: quoted for JSON, Python or a URL, and in base64 wherever it
begins in what was encoded; of a value of several lines, each long line by itself. Other forms (hex, compressed, cut in
two) are not found, nor are values of fewer than `MIN_CHARACTERS`, which would be found everywhere. Files that a program
writes are its own.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import quote, quote_plus

import msgspec

from jobs.protocol.packets import AnyRecord

T = TypeVar("T")

#: Shorter values, lines and encoded forms are left alone.
MIN_CHARACTERS = 8
#: Of a value of many lines, so many of the longest are looked for.
MAX_LINES = 128


class SecretRedactor:
    """The forms of some secrets. `clean_output` remembers the ends of pipes; everything else has no state."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """`values` are those of the secrets by their names."""
        marks = {form: f"[secret {name}]".encode() for name, value in values.items() for form in _forms_of(value)}
        #: The longest first: one secret may be a part of another.
        self._forms = sorted(marks.items(), key=lambda pair: -len(pair[0]))
        self._held: dict[int, bytes] = {}  # by pipe: an end that a form begins with

    def clean(self, data: bytes) -> bytes:
        for form, mark in self._forms:
            if form in data:
                data = data.replace(form, mark)
        return data

    def clean_output(self, pipe: int, data: bytes) -> bytes:
        """What may be shown of the bytes that a pipe has given up to now. An end with which a secret may begin is held
        until more comes; `end_output` has it then."""
        data = self.clean(self._held.pop(pipe, b"") + data)
        line = data[data.rfind(b"\n") + 1 :]
        held = max((_overlap(line, form) for form, _ in self._forms), default=0) if line else 0
        if not held:
            return data
        self._held[pipe] = data[-held:]
        return data[:-held]

    def end_output(self, pipe: int) -> bytes:
        """What was held of a pipe that gives no more."""
        return self._held.pop(pipe, b"")

    def clean_text(self, text: str) -> str:
        return self.clean(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def clean_tree(self, value: T) -> T:
        """The same value, made of what JSON has, with every text in it cleaned, names of fields too."""
        cleaned: Any = value
        match value:
            case str():
                cleaned = self.clean_text(value)
            case dict():
                cleaned = {self.clean_tree(name): self.clean_tree(part) for name, part in value.items()}
            case list() | tuple():
                cleaned = type(value)(map(self.clean_tree, value))
        return cleaned  # type: ignore[no-any-return]

    def clean_packet(self, body: bytes, packet: tuple[AnyRecord, ...]) -> tuple[AnyRecord, ...]:
        """The records of a packet; `body` is what they were decoded from, in which a text is as it was sent."""
        if not any(form in body for form, _ in self._forms):
            return packet
        return tuple(map(self._clean_record, packet))

    def _clean_record(self, record: AnyRecord) -> AnyRecord:
        parts = msgspec.to_builtins(record, builtin_types=(bytes,))
        return msgspec.convert(self.clean_tree(parts), type(record), builtin_types=(bytes,))


def _overlap(data: bytes, form: bytes) -> int:
    """Length of the longest end of `data` that `form` begins with."""
    at = max(0, len(data) - len(form) + 1)
    while (at := data.find(form[:1], at)) >= 0:
        if form.startswith(data[at:]):
            return len(data) - at
        at += 1
    return 0


def _forms_of(value: str) -> Iterator[bytes]:
    """The forms in which a value is looked for."""
    if len(value) < MIN_CHARACTERS:
        return
    written = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1]}
    written |= {quote(value), quote(value, safe=""), quote_plus(value)}
    written |= set(_long_lines(value))
    yield from (form.encode() for form in written)
    for skipped in range(3):
        encoded = _encode_behind(value.encode(), skipped)
        yield from {encoded, encoded.translate(bytes.maketrans(b"+/", b"-_"))}


def _long_lines(value: str) -> list[str]:
    lines = {line for part in value.splitlines() if len(line := part.strip()) >= MIN_CHARACTERS}
    return sorted(lines, key=len, reverse=True)[:MAX_LINES]


def _encode_behind(value: bytes, skipped: int) -> bytes:
    """What base64 makes of a value that follows so many other bytes: the characters that follow from it alone."""
    encoded = base64.b64encode(bytes(skipped) + value)
    shared = -(skipped * 8 // -6)  # characters that the bytes before have a part in
    left = (skipped + len(value)) % 3
    return encoded[shared : len(encoded) - (4 - left if left else 0)]
