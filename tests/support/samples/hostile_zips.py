"""Zip files in which every field can lie."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

FILE, DIRECTORY, LINK, PIPE, DEVICE = 0o100644, 0o040755, 0o120777, 0o010644, 0o020644
UTF8, DESCRIBED, ENCRYPTED = 1 << 11, 1 << 3, 1


@dataclass(frozen=True)
class Part:
    """One entry. `local` and `central` say otherwise, in that header only, what else follows from the data.

    `packed` are the bytes that stand for the data, `offset` is where the directory says that the header is.
    """

    name: str | bytes
    data: bytes = b"print('hello')\n"
    mode: int = FILE
    method: int = 8
    flags: int = UTF8
    packed: bytes | None = None
    local: Mapping[str, Any] = field(default_factory=dict)
    central: Mapping[str, Any] = field(default_factory=dict)
    before: bytes = b""
    descriptor: bytes = b""

    @property
    def raw_name(self) -> bytes:
        return self.name if isinstance(self.name, bytes) else self.name.encode("utf-8", "surrogatepass")

    @property
    def body(self) -> bytes:
        if self.packed is not None:
            return self.packed
        return deflated(self.data) if self.method == 8 else self.data

    @property
    def truth(self) -> dict[str, Any]:
        return {
            "flags": self.flags,
            "method": self.method,
            "crc": zlib.crc32(self.data),
            "packed": len(self.body),
            "size": len(self.data),
            "name": self.raw_name,
            "extra": b"",
        }


@cache  # each part asks three times
def deflated(data: bytes) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflate.compress(data) + deflate.flush()


def zipped(
    *parts: Part, before: bytes = b"", gap: bytes = b"", after: bytes = b"", comment: bytes = b"", **end: int
) -> bytes:
    """A zip of `parts`, with bytes in places where none belong, and an end record that says `end` instead."""
    out = bytearray(before)
    headers = []
    for part in parts:
        out += part.before
        offset = len(out)
        out += _local(part.truth | dict(part.local)) + part.body + part.descriptor
        headers.append(_central({"offset": offset, "mode": part.mode, "disk": 0} | part.truth | dict(part.central)))
    out += gap
    directory = b"".join(headers)
    says = {
        "disk": 0,
        "count": len(parts),
        "length": len(directory),
        "start": len(out),
        "comment_bytes": len(comment),
    } | end
    counts = (says["disk"], says["disk"], says["count"], says["count"])
    record = struct.pack("<4s4H2LH", b"PK\5\6", *counts, says["length"], says["start"], says["comment_bytes"])
    return bytes(out) + directory + record + comment + after


def descriptor(crc: int, packed: int, size: int) -> bytes:
    return b"PK\7\10" + struct.pack("<3L", crc, packed, size)


def extra(kind: int, data: bytes = b"") -> bytes:
    return struct.pack("<2H", kind, len(data)) + data


def _local(says: Mapping[str, Any]) -> bytes:
    numbers = (20, says["flags"], says["method"], 0, 33, says["crc"], says["packed"], says["size"])
    lengths = (len(says["name"]), len(says["extra"]))
    return struct.pack("<4s5H3L2H", b"PK\3\4", *numbers, *lengths) + bytes(says["name"] + says["extra"])


def _central(says: Mapping[str, Any]) -> bytes:
    numbers = (20, 20, says["flags"], says["method"], 0, 33, says["crc"], says["packed"], says["size"])
    lengths = (says.get("name_bytes", len(says["name"])), len(says["extra"]), 0)
    places = (says["disk"], 0, says["mode"] << 16, says["offset"])
    return struct.pack("<4s6H3L5H2L", b"PK\1\2", *numbers, *lengths, *places) + bytes(says["name"] + says["extra"])


def overlapping(copies: int, data: bytes) -> bytes:
    """A bomb whose entries share one body: every header of the directory has the same place."""
    part = Part("0", data)
    return zipped(part, *(Part(str(n), data, packed=b"", central={"offset": 0}) for n in range(1, copies)))


def quoting(copies: int, data: bytes) -> bytes:
    """A bomb whose entries quote the next one's header: each unpacks to that header and all that follows."""
    kernel = deflated(data)
    out = b""
    rows: list[tuple[bytes, int, int, int, int]] = []  # name, crc, packed, size, bytes from the header to the end
    unpacked, crc = data, zlib.crc32(data)
    body = kernel
    for number in reversed(range(copies)):
        name = str(number).encode()
        header = _local(
            {
                "flags": 0,
                "method": 8,
                "crc": crc,
                "packed": len(body),
                "size": len(unpacked),
                "name": name,
                "extra": b"",
            }
        )
        rows.append((name, crc, len(body), len(unpacked), len(header) + len(body)))
        out = header + body
        quote = struct.pack("<BHH", 0, len(header), len(header) ^ 0xFFFF)
        unpacked = header + unpacked
        crc = zlib.crc32(unpacked)
        body = quote + out
    directory = b"".join(
        _central(
            {"flags": 0, "method": 8, "crc": crc, "packed": packed, "size": size, "name": name, "extra": b""}
            | {"offset": len(out) - whole, "mode": FILE, "disk": 0}
        )
        for name, crc, packed, size, whole in reversed(rows)
    )
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, copies, copies, len(directory), len(out), 0)
    return out + directory + end


def names(*paths: str | bytes) -> bytes:
    """A zip of files and directories of these names."""
    return zipped(*(_named(path) for path in paths))


def _named(path: str | bytes) -> Part:
    is_directory = path.endswith(b"/" if isinstance(path, bytes) else "/")  # type: ignore[arg-type]
    return Part(path, b"", mode=DIRECTORY, method=0) if is_directory else Part(path)


def nested(levels: int, data: bytes) -> bytes:
    inner: Sequence[Part] = [Part("bomb", data)]
    for level in range(levels):
        inner = [Part(f"{level}.zip", zipped(*inner))]
    return zipped(*inner)
