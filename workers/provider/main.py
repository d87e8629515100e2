"""`python -m workers.provider.main`: keeps the pools of a file, where Slurm's commands are.

    a look every second        what waits, and what there is for it: one call on the control Redis for each pool
    squeue every 30 seconds    one for all blocks; sooner, once, after something was asked of Slurm or nodes have left

It has one thread. Blocks and their nodes go on without it; the next one finds them.
"""

import argparse
import fcntl
import hashlib
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import structlog
from pydantic import ValidationError

from jobs.model.settings import Settings
from jobs.protocol.names import STORAGE_NONCE
from jobs.scheduling.node_demand import NodeLimits
from jobs.store import Call
from jobs.store.client import RedisStore
from jobs.store.pools import list_offers
from jobs.support.logging_config import configure_logging
from shardyard.contract.errors import Unavailable
from workers.node.devices import VIRTUAL_DEVICES
from workers.provider.batch_script import BlockRequest, batch_environment, batch_script, sbatch_arguments
from workers.provider.pool_keeper import PoolKeeper, PoolLimits
from workers.provider.pools_file import SlurmPool, read_pools_file, read_template
from workers.provider.slurm import EngineError, EngineJob, Slurm

log = structlog.get_logger("workers.provider")

LOOK_SECONDS = 1.0
#: After something that may have changed what Slurm says, it is asked so soon, and not more often than that.
SOON_SECONDS = 2.0
RETRY_SECONDS = 5.0
ENGINE = "slurm"


@dataclass(slots=True)
class SlurmBlocks:
    """Asks Slurm for blocks of one pool."""

    pool: SlurmPool
    slurm: Slurm
    checkpoint_seconds: float

    def submit_block(self, request: BlockRequest) -> str:
        script = batch_script(request, self.pool, self.checkpoint_seconds, read_template(self.pool))
        return self.slurm.submit(sbatch_arguments(request, self.pool, self.checkpoint_seconds), script)

    def cancel_pending(self, blocks: Sequence[str]) -> None:
        self.slurm.cancel_pending(blocks)

    def read_limits(self) -> PoolLimits:
        """What the pool may have. Raises EngineError where Slurm has to say, and does not."""
        nodes, gres, devices = self.pool.nodes, self.pool.gres, self.pool.device_count
        if devices is None:
            gpus = self.slurm.count_gpus(self.pool.partition)
            gres, devices = (f"gpu:{gpus}", gpus) if gpus else ("", VIRTUAL_DEVICES)
        return PoolLimits(NodeLimits(devices, nodes.max, nodes.min), self.pool.max_pending, gres)


@dataclass(slots=True)
class _EngineWatch:
    """When Slurm is to be asked about its jobs, and what it said last in place of an answer."""

    every: float
    asked_at: float = float("-inf")
    error: str = ""

    def is_due(self, *, soon: bool) -> bool:
        wait = RETRY_SECONDS if self.error else SOON_SECONDS if soon else self.every
        return monotonic() - self.asked_at >= min(wait, self.every)


class Provider:
    """`name` says who keeps the pools: the host and the file, so that a restart goes on at once."""

    def __init__(self, name: str, pools: Mapping[str, SlurmPool], settings: Settings, control: RedisStore) -> None:
        self._name = name
        self._pools = pools
        self._settings = settings
        self._store = control
        self._slurm = Slurm(batch_environment(os.environ))
        self._watch = _EngineWatch(settings.engine_seconds)
        self._keepers: dict[str, PoolKeeper] = {}
        self._prefix = ""

    def look(self) -> None:
        """One look at all pools. Raises Unavailable while the control Redis is away."""
        if not self._keepers and not self._begin():
            return
        self._read_limits()
        listing = self._list_jobs() if self._watch.is_due(soon=self._wants_listing) else None
        for pool, keeper in list(self._keepers.items()):
            if keeper.limits is None and pool in self._pools:
                continue  # Slurm has not said what it may have
            keeper.look(listing, self._watch.error)
            if keeper.is_dropped:
                log.info("pool_dropped", pool=pool)
                del self._keepers[pool]

    @property
    def _wants_listing(self) -> bool:
        return any(keeper.wants_listing for keeper in self._keepers.values())

    def _begin(self) -> bool:
        """Know the service, whose blocks have names of their own, and what was kept before. False: there is none."""
        nonce = self._store.run(Call(("GET", STORAGE_NONCE), lambda found: found.decode() if found else ""))
        if not nonce:
            log.warning("no_service", hint="the control Redis is empty; start the API or a worker of the service")
            return False
        self._prefix = f"shardyard-{nonce[:8]}-"
        earlier = [pool for pool, offer in self._store.run(list_offers()).items() if offer.provider == self._name]
        for pool in [*self._pools, *(pool for pool in earlier if pool not in self._pools)]:
            blocks = SlurmBlocks(self._pools.get(pool, _RETIRED), self._slurm, self._settings.checkpoint_seconds)
            prefix = f"{self._prefix}{pool}-"
            self._keepers[pool] = PoolKeeper(pool, ENGINE, prefix, self._name, self._store, blocks)
        log.info("provider_begins", pools=sorted(self._pools), kept_before=sorted(earlier))
        return True

    def _read_limits(self) -> None:
        for name, pool in self._pools.items():
            keeper = self._keepers.get(name)
            if keeper is None or keeper.limits is not None:
                continue
            try:
                keeper.limits = SlurmBlocks(pool, self._slurm, self._settings.checkpoint_seconds).read_limits()
            except EngineError as error:
                self._watch.error = str(error)

    def _list_jobs(self) -> tuple[EngineJob, ...] | None:
        self._watch.asked_at = monotonic()
        try:
            found = self._slurm.list_jobs(self._prefix)
        except EngineError as error:
            if not self._watch.error:
                log.warning("engine_away", error=str(error))
            self._watch.error = f"Slurm does not answer: {error}"
            return None
        self._watch.error = ""
        return found


_RETIRED = SlurmPool.model_validate({"engine": "slurm", "partition": "none", "nodes": {"max": 0}})


@dataclass(slots=True)
class _Stop:
    """Whether this process was asked to end."""

    asked: threading.Event = field(default_factory=threading.Event)

    def heed(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.asked.set())


def run(name: str, pools: Mapping[str, SlurmPool], settings: Settings) -> None:
    """Keep the pools until SIGTERM or SIGINT."""
    stop = _Stop()
    stop.heed()
    control = RedisStore.from_url(settings.control_url())
    provider = Provider(name, pools, settings, control)
    while not stop.asked.is_set():
        pause = LOOK_SECONDS
        try:
            provider.look()
        except Unavailable as error:
            log.warning("control_redis_unavailable", error=str(error))
        except Exception:
            log.exception("provider_failed")
            pause = RETRY_SECONDS
        stop.asked.wait(pause)
    control.close()


def print_scripts(pools: Mapping[str, SlurmPool], settings: Settings) -> None:
    """Print what sbatch would be given for a block of each pool."""
    for name, pool in pools.items():
        gres = pool.gres or ("gpu:K" if pool.device_count is None else "")
        request = BlockRequest(name, f"shardyard-{name}", 1, gres)
        print(f"# pool {name}: {shlex.join(sbatch_arguments(request, pool, settings.checkpoint_seconds))} <<'END'")
        print(batch_script(request, pool, settings.checkpoint_seconds, read_template(pool)) + "END")
        if pool.device_count is None:
            print("# K is what sinfo says of the partition; without GPUs there is no --gres")


def lock_file(settings: Settings, path: Path) -> int | None:
    """A lock on the pools file for this host, held until this process ends; None: another one has it."""
    directory = settings.state_dir.expanduser()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:16]
    lock = os.open(directory / f"provider-{digest}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="shardyard provider")
    parser.add_argument("--pools", required=True, type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    configure_logging("INFO")
    try:
        settings = Settings()
        configure_logging(settings.log_level)
        pools = read_pools_file(given.pools)
        if given.check:
            print_scripts(pools, settings)
            return 0
        settings.control_url()
        path = given.pools.resolve()
        lock = lock_file(settings, path)
    except (ValidationError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if lock is None:
        print(f"error: another provider on this host keeps the pools of {path}", file=sys.stderr)
        return 2
    run(f"{socket.gethostname()}:{path}", pools, settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
