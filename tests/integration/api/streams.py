"""Readers of streams over raw sockets, and an attempt whose telemetry is real, without a worker."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from jobs import store
from jobs.files import paths
from jobs.model.state import StateReason
from jobs.protocol import names
from jobs.protocol.records import MetricSample
from jobs.store.client import RedisStore
from tests.integration.api.conftest import ADMIN
from workers.supervisor.report.shard_lines import ShardLine
from workers.supervisor.telemetry.log_relay import LogRelay
from workers.supervisor.telemetry.metric_relay import MetricRelay
from workers.supervisor.telemetry.report_publisher import write_atomically
from workers.supervisor.telemetry.shipper import StreamShipper


@dataclass(frozen=True)
class Event:
    name: str
    data: Any
    id: str


class Parser:
    """Server-sent events as the specification has them: lines end with CR, LF, or both."""

    def __init__(self) -> None:
        self._rest = b""
        self.comments = 0

    def feed(self, received: bytes) -> Iterator[Event]:
        self._rest += received
        while b"\n\n" in self._rest:
            block, self._rest = self._rest.split(b"\n\n", 1)
            assert b"\r" not in block
            fields: dict[str, str] = {}
            for line in block.decode().split("\n"):
                name, _, value = line.partition(":")
                assert name in ("", "event", "data", "id", "retry"), line
                assert name not in fields, block
                fields[name] = value.removeprefix(" ")
            if "data" in fields:
                yield Event(fields["event"], json.loads(fields["data"]), fields["id"])
            else:
                self.comments += 1


class Reader:
    """One client of a stream. `events` has everything that came; `status` is 0 before the head."""

    def __init__(self, port: int, path: str, last_id: str = "", token: str = ADMIN, buffer: int = 0) -> None:
        self.socket = socket.socket()
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(60)
        self.socket.connect(("127.0.0.1", port))
        resume = f"Last-Event-ID: {last_id}\r\n" if last_id else ""
        head = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{resume}\r\n"
        self.socket.sendall(head.encode())
        self.events: list[Event] = []
        self.status, self.headers, self.body = 0, dict[str, str](), b""
        self.ended = False
        self.received = 0
        self.whole = b""  # everything after the head, without the marks of chunks
        self._raw = b""
        self._parser = Parser()

    @property
    def comments(self) -> int:
        return self._parser.comments

    def read(self, seconds: float = 60, most: int = 65536) -> bool:
        """Take what comes next; False at the end. Raises TimeoutError."""
        self.socket.settimeout(seconds)
        received = self.socket.recv(most)
        self.received += len(received)
        self._raw += received
        if not self.status and b"\r\n\r\n" in self._raw:
            head, self._raw = self._raw.split(b"\r\n\r\n", 1)
            lines = head.decode().split("\r\n")
            self.status = int(lines[0].split()[1])
            self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
            assert len(self.headers) == len(lines) - 1, f"a header came twice: {lines}"
        if self.status == 200:
            self._unchunk()
        else:
            self.body = self._raw
        self.ended = self.ended or not received
        return not self.ended

    def _unchunk(self) -> None:
        while b"\r\n" in self._raw:
            size, rest = self._raw.split(b"\r\n", 1)
            length = int(size, 16)
            if len(rest) < length + 2:
                return
            self._raw = rest[length + 2 :]
            self.whole += rest[:length]
            self.events += self._parser.feed(rest[:length])
            self.ended = self.ended or not length

    def until(self, found: Callable[["Reader"], Any], seconds: float = 60) -> Any:
        """Read until `found` gives something. Raises AssertionError."""
        deadline = time.monotonic() + seconds
        while not (result := found(self)):
            left = deadline - time.monotonic()
            assert left > 0, f"not within {seconds} s: {self.status} {self.body!r} {self.events[-5:]}"
            assert not self.ended, f"the stream ended: {self.status} {self.body!r} {self.events[-5:]}"
            with suppress(TimeoutError):
                self.read(min(left, 0.2))
        return result

    def to_end(self, seconds: float = 60) -> list[Event]:
        deadline = time.monotonic() + seconds
        while not self.ended:
            assert time.monotonic() < deadline, self.events[-5:]
            with suppress(TimeoutError):
                self.read(0.2)
        return self.events

    def named(self, name: str) -> list[Any]:
        return [event.data for event in self.events if event.name == name]

    def lines(self, device: int = 0, attempt: int = 1) -> list[str]:
        """The texts of a device's lines, whose numbers must have no gap and no repeat."""
        found = lines_of(self.events, device, attempt)
        return [line["text"] for line in found]

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lines_of(events: list[Event], device: int = 0, attempt: int = 1) -> list[dict[str, Any]]:
    return [
        line
        for event in events
        if event.name == "log" and (event.data["device"], event.data["attempt"]) == (device, attempt)
        for line in event.data["lines"]
    ]


def points_of(events: list[Event], name: str, device: int = -1) -> list[tuple[int, float | None]]:
    """(number, value) of a series."""
    return [
        (event.data["first"] + place, point[1])
        for event in events
        if event.name == "metric" and (event.data["name"], event.data["device"]) == (name, device)
        for place, point in enumerate(event.data["points"])
    ]


class Attempt:
    """A job's attempt that this test runs in the place of a worker, with the relays and the shipper of one."""

    def __init__(self, control: RedisStore, telemetry_url: str, storage: Path, job: str, number: int = 1) -> None:
        self.job = job
        self.id = store.AttemptId("default", job, number)
        self.directory = paths.attempt_dir(storage.resolve(), "default", job, number)
        self._control = control
        assert control.run(store.claim(self.id, "c", "host-a")).granted
        record = control.run(store.read_job("default", job)).record
        self.shipper = StreamShipper(telemetry_url, "default", job, number)
        self.logs = LogRelay(self.directory, record.devices, self.shipper)
        self.metrics = MetricRelay(self.directory, self.shipper)

    def up(self) -> None:
        assert self._control.run(store.record_milestone(self.id, "c", "running"))

    def print(self, *texts: str | bytes, device: int = 0) -> None:
        data = b"".join((text.encode() if isinstance(text, str) else text) + b"\n" for text in texts)
        self.logs.add_output(device, "stdout", device, data, None)
        self.logs.flush_due(time.time() + 10)

    def shard_lines(self, *texts: str, device: int = 0) -> None:
        self.logs.add_shard_lines(0, [ShardLine(device, step, "train", text) for step, text in enumerate(texts)])

    def points(self, *values: float, name: str = "loss", step: int = 0) -> None:
        for place, value in enumerate(values):
            self.metrics.add_point(MetricSample(-1, name, step + place, value, time.time()))
        self.metrics.flush_due(time.time() + 10)

    def progress(self, **fields: Any) -> None:
        key = names.progress_key("default", self.job, self.id.number)
        self.shipper.put_blob(key, msgspec.json.encode(fields), 3600)

    def report(self, *, final: bool = False, **fields: Any) -> None:
        """A report of these parts: patterns, devices, findings. The final one goes to its file."""
        body = msgspec.json.encode({"attempt": self.id.number, "devices": [{"device": 0}]} | fields)
        if final:
            write_atomically(paths.report_file(self.directory), body)
        else:
            self.shipper.put_blob(names.report_key("default", self.job, self.id.number), body, 3600)

    def end(self, reason: StateReason = StateReason.COMPLETED) -> None:
        self.logs.close()
        self.metrics.close()
        self.shipper.close(60)
        self.finish(reason)

    def finish(self, reason: StateReason = StateReason.COMPLETED) -> None:
        """Tell the end, once the files are whole."""
        result: Any = {"loss": 0.5, "metrics": {}} if reason is StateReason.COMPLETED else None
        assert self._control.run(store.finish(self.id, "c", reason, "", result=result))
        self._control.run(store.release("host-a", self.id, {}))


def pattern(rows: list[int]) -> dict[str, Any]:
    return {"phase": "train", "module": "", "batch_rows": sum(rows), "rows": rows}


def finding(code: str, message: str = "") -> dict[str, Any]:
    return {"code": code, "severity": "warning", "message": message, "suggestion": ""}
