"""Log lines: from the pipes of ranks into files and Redis, against one XADD for each line.

Side A is the road of the product: as many processes as there are ranks write made-up training logs
(`programs/training_output.py`) to real pipes; one process reads them with the supervisor's parts
(`workers.supervisor.telemetry.log_relay`,
`workers.supervisor.telemetry.shipper`, `workers.supervisor.telemetry.output_tail`), writes each rank's log file, and
ships it to a telemetry Redis. Side B is redis-py in one process that has the same lines in memory, and adds each as an
entry of its rank's stream, 1,000 to a pipeline. It reads no pipe and writes no file.

Both end when Redis has acknowledged the last line. Afterwards everything is read back: every line must be in the file
and in the stream, in order.
"""

import hashlib
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import redis

from benchmarks.harness.comparing import Figure, Say, Scale, at_most, in_turns, share_of
from benchmarks.harness.servers import redis_server
from benchmarks.programs import training_output, writer
from jobs.files import log_file, log_page, paths
from jobs.protocol import names
from workers.supervisor.event_loop import READ_BYTES
from workers.supervisor.telemetry.log_relay import LogRelay
from workers.supervisor.telemetry.output_tail import OutputTails
from workers.supervisor.telemetry.shipper import StreamShipper

TITLE = "Log lines into files and Redis"

OURS, XADD = "shardyard", "one XADD a line"
RANKS = (1, 4, 8)
LINES = (50_000, 150_000, 450_000)
#: How many lines one rank prints in a tenth of a second, which is what a chunk has then.
SLOW = (1, 10, 50)
SLOW_CHUNKS = 500
PIPELINE = 1000
#: So much that nothing is trimmed before it is counted; the product keeps 4 MiB of each rank's stream.
WINDOW_BYTES = 1 << 30
SECONDS = 60.0
JOB = "01a1faf7-950c-74f3-af12-cc10a45948be"


@dataclass(frozen=True, slots=True)
class Sample:
    lines: int
    seconds: float
    cpu_seconds: float
    redis_bytes: int
    disk_bytes: int = 0

    @property
    def rate(self) -> float:
        return self.lines / self.seconds


def run(scale: Scale, say: Say) -> list[Figure]:
    rounds = scale.rounds_of(3, 1)
    lines, ranks = scale.pick((LINES, RANKS), ((5_000, 10_000, 20_000), RANKS))
    middle = lines[1]
    with redis_server("telemetry") as server, tempfile.TemporaryDirectory(prefix="bench-logs-") as directory:
        cells = [*((count, max(ranks)) for count in lines), *((middle, of) for of in ranks)]
        texts = [
            training_output.text(rank, max(count // of for count, of in cells if rank < of))
            for rank in range(max(ranks))
        ]
        length = sum(map(len, texts)) / sum(text.count(b"\n") for text in texts)
        say(f"lines of {length:.0f} bytes are made up")

        def measure(count: int, of: int) -> dict[str, list[Sample]]:
            parts = [_first_lines(text, count // of) for text in texts[:of]]
            sides = {
                OURS: partial(relayed, parts, server.url, Path(directory)),
                XADD: partial(added, parts, server.url),
            }
            say(f"{count:,} lines of {of} ranks")
            return in_turns(sides, rounds, say=say, warm_up=int(count == lines[0]))

        by_lines = {count: measure(count, max(ranks)) for count in lines}
        slow = {each: _slow(texts[0], each, server.url, Path(directory)) for each in SLOW}
        by_ranks = {of: measure(middle, of) if of != max(ranks) else by_lines[middle] for of in ranks}
    most = by_lines[max(lines)]
    return [
        *(
            _rates(f"log lines a second, {max(ranks)} ranks", found, count, "lines")
            for count, found in by_lines.items()
        ),
        *(_rates(f"log lines a second, {middle:,} lines", found, of, "ranks") for of, found in by_ranks.items()),
        Figure(
            "CPU time of the writing process for a million lines",
            "s",
            {side: [each.cpu_seconds / each.lines * 1e6 for each in found] for side, found in most.items()},
            note="ours reads the pipes, numbers and packs the lines, and writes the files too",
        ),
        Figure(
            "bytes of a line in Redis",
            "bytes",
            {side: [each.redis_bytes / each.lines for each in found] for side, found in most.items()},
            [at_most(40)],
            note=f"used_memory, before anything is trimmed; a line has {length:.0f} bytes",
        ),
        Figure(
            "bytes of a line on disk",
            "bytes",
            {OURS: [each.disk_bytes / each.lines for each in most[OURS]]},
            [at_most(40)],
            note="the log files; the append-only file of Redis is not counted on either side",
        ),
        *(
            Figure(
                "bytes of a line in Redis, of one rank that prints slowly",
                "bytes",
                {side: [each.redis_bytes / each.lines] for side, each in found.items()},
                size=10 * lines_a_chunk,
                size_of="lines a second",
            )
            for lines_a_chunk, found in slow.items()
        ),
    ]


def _rates(name: str, found: dict[str, list[Sample]], size: int, of: str) -> Figure:
    samples = {side: [each.rate for each in rounds] for side, rounds in found.items()}
    return Figure(name, "", samples, [share_of(XADD, 1.0)], lower_is_better=False, size=size, size_of=of)


def _slow(text: bytes, lines_a_chunk: int, url: str, directory: Path) -> dict[str, Sample]:
    """As chunks of so many lines have it, without waiting for them: only the bytes are of interest."""
    part = _first_lines(text, min(lines_a_chunk * SLOW_CHUNKS, text.count(b"\n")))
    client = _empty(url)
    with tempfile.TemporaryDirectory(dir=directory) as place:
        before = _used_memory(client)
        shipper = StreamShipper(url, names.DEFAULT_TENANT, JOB, 1, window_bytes=WINDOW_BYTES)
        relay = LogRelay(Path(place), 1, shipper)
        lines = part.split(b"\n")[:-1]
        for start in range(0, len(lines), lines_a_chunk):
            relay.add_output(
                0, "stdout", 0, b"".join(line + b"\n" for line in lines[start : start + lines_a_chunk]), None
            )
            relay.flush_due(time.time() + 1)
        relay.close()
        assert not shipper.close(SECONDS)
        used = _used_memory(client) - before
        _check(part, paths.log_file(Path(place), 0), client, 0)
    return {OURS: Sample(len(lines), 1, 0, used), XADD: added([part], url)}


def _first_lines(text: bytes, count: int) -> bytes:
    """Of a text that is long enough."""
    end, rest = 0, text.count(b"\n")
    if rest == count:
        return text
    for _ in range(count):
        end = text.index(b"\n", end) + 1
    return text[:end]


# -- ours ------------------------------------------------------------------------------------------


def relayed(texts: list[bytes], url: str, directory: Path) -> Sample:
    """Raises AssertionError: a line was lost, or is not what was written."""
    client = _empty(url)
    with tempfile.TemporaryDirectory(dir=directory) as place, writers(texts, Path(place)) as ranks:
        attempt = Path(place) / "attempt"
        before, cpu = _used_memory(client), time.process_time()
        began = time.perf_counter()
        shipper = StreamShipper(url, names.DEFAULT_TENANT, JOB, 1, window_bytes=WINDOW_BYTES)
        relay = LogRelay(attempt, len(texts), shipper)
        _relay(ranks, relay)
        relay.close()
        left = shipper.close(SECONDS)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        assert not left, left
        used = _used_memory(client) - before
        files = [paths.log_file(attempt, rank) for rank in range(len(texts))]
        for rank, (text, file) in enumerate(zip(texts, files, strict=True)):
            _check(text, file, client, rank)
        lines = sum(text.count(b"\n") for text in texts)
        return Sample(lines, seconds, cpu, used, sum(file.stat().st_size for file in files))


def _relay(ranks: "list[subprocess.Popen[bytes]]", relay: LogRelay) -> None:
    """As `workers.supervisor.rank_monitor` does it, with nothing else to look after."""
    selector, tails = selectors.DefaultSelector(), OutputTails()
    for rank, process in enumerate(ranks):
        assert process.stdin is not None
        assert process.stdout is not None
        selector.register(process.stdout.fileno(), selectors.EVENT_READ, rank)
        process.stdin.write(b"!")
        process.stdin.flush()
    while selector.get_map():
        due = relay.next_deadline()
        for key, _ in selector.select(None if due is None else max(0.0, due - time.time())):
            data = os.read(key.fd, READ_BYTES)
            if data:
                relay.add_output(key.data, "stdout", key.data, data, None)
                tails.add_output(key.data, "stdout", key.data, data)
            else:
                selector.unregister(key.fd)
        relay.flush_due(time.time())
    selector.close()


@contextmanager
def writers(texts: list[bytes], directory: Path) -> Iterator["list[subprocess.Popen[bytes]]"]:
    """Processes that have read their texts, and wait for a byte."""
    with ExitStack() as stack:
        ranks = []
        for rank, text in enumerate(texts):
            file = directory / f"{rank}.txt"
            file.write_bytes(text)
            command = [sys.executable, "-I", "-S", str(writer.__file__), str(file)]
            pipe = subprocess.PIPE
            process = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe))
            stack.callback(process.kill)
            ranks.append(process)
        for process in ranks:
            assert process.stderr is not None
            assert process.stderr.read(1) == b"!"
        yield ranks


def _check(text: bytes, file: Path, client: "redis.Redis", rank: int) -> None:
    """The file and the stream hold the text."""
    seal = log_file.read_seal(file)
    count = text.count(b"\n")
    assert seal is not None
    assert (seal.count, seal.dropped, seal.digest) == (count, 0, hashlib.blake2b(text, digest_size=16).hexdigest())
    key = names.log_stream(names.DEFAULT_TENANT, JOB, 1, rank)
    entries: Any = client.xrange(key)
    chunks = [fields[b"f"] for _, fields in entries]
    assert b"".join(chunks) == file.read_bytes(), f"the stream of rank {rank} is not its file"
    digest, seen = hashlib.blake2b(digest_size=16), 0
    for chunk in chunks:
        lines = log_page.read_chunk(chunk).lines
        assert [line.seq for line in lines] == list(range(seen + 1, seen + 1 + len(lines)))
        seen += len(lines)
        digest.update(b"".join(line.text + b"\n" for line in lines))
    assert (seen, digest.hexdigest()) == (count, seal.digest)


# -- theirs ----------------------------------------------------------------------------------------


def added(texts: list[bytes], url: str) -> Sample:
    """Raises AssertionError: a line was lost."""
    client = _empty(url)
    lines = [text.split(b"\n")[:-1] for text in texts]
    keys = [f"log:{rank}" for rank in range(len(texts))]
    total = sum(map(len, lines))
    before, cpu = _used_memory(client), time.process_time()
    began = time.perf_counter()
    for start in range(0, len(lines[0]), PIPELINE):
        for key, of_rank in zip(keys, lines, strict=True):
            pipe = client.pipeline(transaction=False)
            for line in of_rank[start : start + PIPELINE]:
                pipe.xadd(key, {"d": line})
            pipe.execute()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    used = _used_memory(client) - before
    assert sum(client.xlen(key) for key in keys) == total
    return Sample(total, seconds, cpu, used)


def _empty(url: str) -> "redis.Redis":
    """A client of the server, which holds nothing any more: what it frees in the background would count as gained."""
    client: Any = redis.Redis.from_url(url)
    client.execute_command("FLUSHALL", "SYNC")
    return client  # type: ignore[no-any-return]


def _used_memory(client: "redis.Redis") -> int:
    return int(client.info("memory")["used_memory"])
