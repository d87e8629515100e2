"""Events that are made from a split report: its splits, its findings, and that it has changed."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from api.events.event_id import nonzero_checksum
from shardyard.contract import stream_events


@dataclass(frozen=True, slots=True)
class ReportEvents:
    """The data of the events of one report: `findings` are (checksum of what identifies it, data)."""

    tag: int
    changed: str
    splits: tuple[str, ...] = ()
    findings: tuple[tuple[int, str], ...] = ()


class _ReportParts(msgspec.Struct):
    patterns: list[msgspec.Raw] = []
    devices: msgspec.Raw = msgspec.Raw(b"[]")
    findings: list[msgspec.Raw] = []


class _FindingCode(msgspec.Struct):
    code: str = ""


def read_report_events(attempt: int, body: bytes) -> ReportEvents:
    """A damaged report has no splits and no findings; the route of the report says why."""
    etag = hashlib.blake2b(body, digest_size=9).hexdigest()
    changed = stream_events.data(stream_events.ReportChanged(attempt=attempt, etag=etag))
    try:
        parts = msgspec.json.decode(body, type=_ReportParts)
        splits = [
            stream_events.data({"attempt": attempt, "pattern": pattern, "devices": parts.devices})
            for pattern in parts.patterns
        ]
        findings = list(_finding_events(attempt, parts.findings))
    except msgspec.MsgspecError:
        return ReportEvents(nonzero_checksum(body), changed)
    return ReportEvents(nonzero_checksum(body), changed, tuple(splits), tuple(findings))


def _finding_events(attempt: int, findings: list[msgspec.Raw]) -> Iterator[tuple[int, str]]:
    """The text of a finding changes with its numbers: it stays the same finding as the n-th with its code."""
    seen: dict[str, int] = {}
    for finding in findings:
        code = msgspec.json.decode(finding, type=_FindingCode).code
        seen[code] = seen.get(code, 0) + 1
        tag = nonzero_checksum(f"{code} {seen[code]}".encode())
        yield tag, stream_events.data({"attempt": attempt, "finding": finding})
