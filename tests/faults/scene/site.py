"""The whole service of real processes: two Redis servers, one of them perhaps behind a proxy, the API, and workers."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from api.__main__ import open_listener
from jobs import store
from jobs.model.state import TERMINAL
from tests.faults.inject.proxy import Proxy, proxied
from tests.faults.scene.checker import Evidence, essence, violations
from tests.faults.scene.journal import SERVER_OPTIONS, read_past
from tests.faults.scene.recorder import Caller
from tests.integration.workers.service import MODULE, TENANT, Service, eventually
from tests.support.servers.redis_server import RedisServer, redis_server

TOKEN = "the-admin-token-of-these-tests"
READY_SECONDS = 180.0
#: A checker that finds something looks again for so long: devices are given back a little after a job has ended.
SETTLE_SECONDS = 60.0


def _free_port() -> int:
    """One that is left to us while nobody listens on it: connections are given theirs from 32768 on."""
    for port in range(20_000 + os.getpid() % 1_000 * 12, 32_768):
        with suppress(OSError), open_listener("127.0.0.1", port):
            return port
    raise AssertionError("every port is taken")


class Api:
    """One API process on a port that stays the same."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = dict(environment) | {"SHARDYARD_PORT": str(self.port), "SHARDYARD_ADMIN_TOKEN": TOKEN}
        self.prefix: list[str] = []  # a command line that goes before that of the next one that starts
        self.log = directory / "api.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        """Start it, and wait until it answers."""
        self.spawn(**environment)
        eventually(self._answers, f"the API answers; its log is {self.log}", READY_SECONDS)

    def spawn(self, **environment: str) -> None:
        """Start it, and wait for nothing."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "api"], env=self.environment | environment, stdout=log, stderr=log
            )

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/healthz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self, number: signal.Signals = signal.SIGKILL, seconds: float = 30.0) -> int:
        """End it by a signal; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(seconds)

    def close(self) -> None:
        if self.alive:
            self.end()


class Site(Service):
    """A `Service` with an API, whose processes reach the control Redis through a proxy, if there is one.

    `worker_environment` and `worker_prefix` are for workers that start from now on: variables (of failpoints, of a
    clock), and a command line that goes before theirs.
    """

    def __init__(
        self,
        directory: Path,
        control: RedisServer,
        telemetry: RedisServer,
        proxy: Proxy | None = None,
        **settings: float | str,
    ) -> None:
        self.telemetry, self._proxy = telemetry, proxy
        self.worker_environment: dict[str, str] = {}
        self.worker_prefix: list[str] = []
        super().__init__(directory, control, **settings)
        inherited = self._environment() | {"SHARDYARD_RECONCILE_SECONDS": "0.5"}
        self.api = Api(directory, inherited)
        self.caller = Caller(self.api.url, TOKEN)
        self._bundles: dict[str, str] = {}  # the id of each source
        self._earlier: frozenset[str] = frozenset()
        self._allowed: dict[str, Any] = {}

    def _environment(self) -> dict[str, str]:
        front = self._proxy.url if self._proxy is not None else self.server.url
        urls = {"SHARDYARD_REDIS_URL": front, "SHARDYARD_TELEMETRY_URL": self.telemetry.url}
        return super()._environment() | urls | self.worker_environment

    def _spawn(self, command: list[str], **settings: str) -> subprocess.Popen[bytes]:
        return super()._spawn([*self.worker_prefix, *command], **settings)

    @property
    def proxy(self) -> Proxy:
        """What is before the control Redis. Only with `through`."""
        assert self._proxy is not None
        return self._proxy

    @property
    def state_dir(self) -> Path:
        return self.settings.state_dir

    # -- jobs, as users have them ----------------------------------------------------------------------

    def body(self, strategy: str = "single", devices: int = 1, **options: Any) -> dict[str, Any]:
        """A spec as it is sent; options as those of `Service.spec`. `every`: save a checkpoint after so many steps."""
        name, every = options.pop("name", None), options.pop("every", 0)
        found: dict[str, Any] = self.spec(strategy, devices, **options).model_dump(mode="json", exclude_unset=True)
        if every:
            found["program"]["checkpoint"] = {"every_steps": every}
        return found | ({"name": name} if name else {})

    def post(self, strategy: str = "single", devices: int = 1, *, key: str = "", **options: Any) -> str:
        """Submit a job by HTTP."""
        return self.caller.submit(self.body(strategy, devices, **options), key=key)

    def post_script(
        self, source: str, *, devices: int = 1, name: str | None = None, key: str = "", **program: Any
    ) -> str:
        """Submit a script of one file by HTTP; further fields are those of `program`."""
        if source not in self._bundles:
            self._bundles[source] = self.bundle({"train.py": source})
        chosen = {"kind": "script", "bundle": self._bundles[source], "entrypoint": "train.py", **program}
        body = {"program": chosen, "resources": {"devices": devices}}
        return self.caller.submit(body | ({"name": name} if name else {}), key=key)

    def running(self, strategy: str = "single", devices: int = 1, **options: Any) -> str:
        """A job that was submitted by HTTP, in its second step at least."""
        job = self.post(strategy, devices, **{"steps": 10_000, "seconds": 0.02, "rows": 2} | options)
        eventually(lambda: self.job(job).first_step, f"first step of {job}")
        return job

    def all_ended(self, jobs: list[str], seconds: float = 60.0) -> None:
        eventually(
            lambda: all(self.job(job).state in TERMINAL for job in jobs), f"the ends of {len(jobs)} jobs", seconds
        )

    def essence(self, job: str) -> Any:
        """What of a job's report and result must be the same for every job of its spec."""
        found = self.store.run(store.snapshot(TENANT, job))
        assert found is not None
        return essence(self.files(job, self.job(job).attempt), found.job)

    # -- the verdict -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """From here on it is another test that answers for what happens."""
        self._earlier = frozenset(read_past(self.directory / "redis").jobs)
        self._allowed = {}
        self.caller.exchanges.clear()

    def allow(self, **fields: Any) -> None:
        """Say what the faults of this test may do: fields of `Evidence`."""
        self._allowed |= fields

    def evidence(self) -> Evidence:
        return Evidence(
            client=self.store.client,
            redis_directory=self.directory / "redis",
            storage=self.settings.storage,
            state_dir=self.state_dir,
            exchanges=tuple(self.caller.exchanges),
            earlier=self._earlier,
            **self._allowed,
        )

    def is_sound(self) -> None:
        """Check every invariant. Nothing may be running.

        Raises:
            AssertionError: naming what is broken.
        """
        found: list[str] = []

        def look() -> bool:
            found[:] = violations(self.evidence())
            return not found

        try:
            eventually(look, "no violation", SETTLE_SECONDS)
        except AssertionError:
            raise AssertionError("\n".join(found)) from None

    def spawn_worker(self) -> None:
        """Start a worker, and wait for nothing."""
        self.worker = self._spawn(MODULE)

    def heal(self) -> None:
        """Have everything run again, whatever has been done to it."""
        for server in (self.server, self.telemetry):
            if not server.alive:
                server.start()
        if self._proxy is not None:
            self._proxy.clear()
            self._proxy.flow()
            self._proxy.accept()
        self.worker_environment, self.worker_prefix = {}, []
        if not self.api.alive:
            self.api.start()
        self.restore_worker()

    def restore(self) -> None:
        """Heal it, and end what a test has left."""
        self.heal()
        self.end_all()

    def close(self) -> None:
        self.caller.close()
        self.api.close()
        super().close()


@contextmanager
def running_site(
    directory: Path, *, worker: bool = True, api: bool = True, through: str = "", **settings: float | str
) -> Iterator[Site]:
    """A site. `through`: the address of a proxy before the control Redis; none without."""
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        control = stack.enter_context(redis_server(directory / "redis", **SERVER_OPTIONS))
        telemetry = stack.enter_context(redis_server(directory / "telemetry", appendonly="yes"))
        proxy = stack.enter_context(proxied(control.url, through)) if through else None
        site = Site(directory, control, telemetry, proxy, **settings)
        try:
            if api:
                site.api.start()
            if worker:
                site.start_worker()
            yield site
        finally:
            site.close()
