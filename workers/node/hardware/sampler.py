"""Samples the hardware of all attempts of a node once a second, in a thread of its own.

Nothing waits for this thread, and nothing that fails in it reaches a job: a driver that hangs stops the samples, and
no more.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from time import monotonic

import redis
import structlog

from jobs.protocol import names
from jobs.protocol.hardware import NodeReading, encode_readings
from jobs.store import AttemptId
from jobs.store.client import connect_for_loss
from workers.node.hardware.attempt_sampler import AttemptSampler, open_sampler
from workers.node.hardware.gpu_reader import GpuReader
from workers.node.hardware.process_tree import read_children
from workers.runtime.launch import AttemptDirectory

log = structlog.get_logger(__name__)

SAMPLE_SECONDS = 1.0
#: How often descendants of ranks are looked for.
SEARCH_SECONDS = 5.0
#: How often the newest readings go to the telemetry Redis, and how long they count.
PUBLISH_SECONDS = 5.0
READINGS_TTL = 20
_SOCKET_SECONDS = 0.5


class HardwareSampler:
    def __init__(
        self,
        node: str,
        state_dir: Path,
        telemetry_url: str,
        holding: Callable[[], Collection[AttemptId]],
    ) -> None:
        """`state_dir` is the node's own; `holding` returns the attempts that have devices here."""
        self._state_dir = state_dir
        self._holding = holding
        self._gpus = GpuReader()
        self._samplers: dict[AttemptId, AttemptSampler] = {}
        self._search_after = 0.0
        self._publisher = ReadingsPublisher(telemetry_url, names.readings_key(node))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hardware", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take no further sample. One that is under way is not waited for: the driver may hang."""
        self._stop.set()

    def _run(self) -> None:
        with suppress(OSError):
            self._remove_leftovers()
        failed = False
        while not self._stop.wait(_seconds_to_next(time.time())):
            try:
                self.sample_once(time.time())
                failed = False
            except Exception:
                if not failed:  # once in a row: it may fail each second
                    log.exception("hardware_not_sampled")
                failed = True

    def sample_once(self, now: float) -> None:
        """Sample every attempt that runs here; `now` is in seconds since the epoch."""
        self._update_attempts(now)
        if not self._samplers:
            self._gpus.close()
            self._publisher.disconnect()
            return
        children = read_children() if self._is_search_due() else None
        xids: dict[str, list[int]] = defaultdict(list)
        for gpu, xid in self._gpus.take_xids():
            xids[gpu].append(xid)
        readings: list[NodeReading] = []
        for attempt, sampler in self._samplers.items():
            try:
                readings += sampler.sample(self._gpus, now, children, xids)
                sampler.write_if_due()
            except OSError as error:
                log.warning("samples_not_written", attempt=str(attempt), error=str(error))
        self._publisher.publish_if_due(readings)

    def _is_search_due(self) -> bool:
        if monotonic() < self._search_after:
            return False
        self._search_after = monotonic() + SEARCH_SECONDS - SAMPLE_SECONDS / 2
        return True

    def _update_attempts(self, now: float) -> None:
        held = set(self._holding())
        for attempt in self._samplers.keys() - held:
            self._samplers.pop(attempt).remove()
        for attempt in held - self._samplers.keys():
            sampler = open_sampler(AttemptDirectory.of(self._state_dir, attempt), now)
            if sampler is not None:
                self._samplers[attempt] = sampler
                self._search_after = 0.0  # its descendants are found at once

    def _remove_leftovers(self) -> None:
        """Make the directory, and remove files of attempts that ended while no worker was here."""
        directory = AttemptDirectory(self._state_dir / "attempts" / "any").hardware.parent
        directory.mkdir(exist_ok=True, mode=0o700)
        for file in directory.iterdir():
            if not (self._state_dir / "attempts" / file.name.rpartition(".")[0]).exists():
                file.unlink(missing_ok=True)


class ReadingsPublisher:
    """Puts the newest readings of a node's devices into the telemetry Redis, for `/metrics`."""

    def __init__(self, url: str, key: str) -> None:
        self._client = connect_for_loss(url, _SOCKET_SECONDS)
        self._key = key
        self._publish_after = 0.0
        self._failed = False

    def disconnect(self) -> None:
        """Hold no connection while nothing runs; the next publication connects again."""
        self._client.close()

    def publish_if_due(self, readings: list[NodeReading]) -> None:
        if monotonic() < self._publish_after:
            return
        self._publish_after = monotonic() + PUBLISH_SECONDS - SAMPLE_SECONDS / 2
        try:
            self._client.set(self._key, encode_readings(readings), ex=READINGS_TTL)
            self._failed = False
        except (redis.RedisError, OSError) as error:
            if not self._failed:
                log.warning("readings_not_published", error=str(error))
            self._failed = True


def _seconds_to_next(now: float) -> float:
    """Until the next whole second, so that all nodes sample at the same moments."""
    return SAMPLE_SECONDS - now % SAMPLE_SECONDS
