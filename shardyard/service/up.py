"""`shardyard up`: one command that runs the whole service on one machine, in one directory.

    start   control and telemetry Redis -> API -> worker -> ready when the node has shown its devices
    stop    worker (its attempts go back to the queue) -> API -> Redis

The worker ends first because its attempts must still be able to write how they ended; Redis ends
last because everybody writes to it.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape

from jobs.model.settings import Settings
from shardyard import formatting
from shardyard.client import Client
from shardyard.client.connection import SERVICE_FILE, default_data_dir, url_host
from shardyard.contract.errors import ShardyardError
from shardyard.contract.responses import NodeView
from shardyard.service import embedded_redis
from shardyard.service.processes import ProcessGroup, ServiceError, ServiceProcess, is_alive, sole_owner

READY_SECONDS = 120.0
#: How often `up` looks whether a signal has come.
TICK_SECONDS = 0.2
#: The API drains open requests for 10 s.
API_STOP_SECONDS = 15.0
#: The worker's time to bring its attempts back to the queue, beside what they may take to save.
WORKER_STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    host: str = "127.0.0.1"
    port: int = 8000
    data_dir: Path = field(default_factory=default_data_dir)
    devices: str = "auto"
    pool: str = "default"
    redis_url: str | None = None
    telemetry_url: str | None = None


class InterruptCounter:
    """Counts SIGINT, SIGTERM and SIGHUP while it is entered: the first asks for a stop, a second for a fast one."""

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup ignores SIGHUP before we start; it must stay ignored.
            if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._count_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _count_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1


def run_service(options: UpOptions, console: Console) -> None:
    """Run the service until SIGINT or SIGTERM, then stop it in order.

    Raises:
        ServiceError: something does not start or does not stay up; what had started is stopped again.
    """
    data_dir = options.data_dir.expanduser().absolute()
    with sole_owner(data_dir / "up.lock"), InterruptCounter() as interrupts:
        run = _ServiceRun(options, data_dir, console, interrupts)
        try:
            run.start()
            run.watch()
        finally:
            run.stop()


class _ServiceRun:
    """One run of `up`, from its first process to its last."""

    def __init__(self, options: UpOptions, data_dir: Path, console: Console, interrupts: InterruptCounter) -> None:
        self._options = options
        self._data_dir = data_dir
        self._console = console
        self._interrupts = interrupts
        self._started: list[str] = []
        self._processes = ProcessGroup(say=self._print_warning, hurried=lambda: interrupts.count > 1)

    def start(self) -> None:
        """Start everything, in order, and wait until the service accepts jobs (or a signal comes)."""
        begun = time.monotonic()
        self._print_line(f"[bold]shardyard[/] on {escape(str(self._data_dir))}")
        port = self._choose_port()
        environment = self._service_environment(port) | self._start_redis()
        if environment["SHARDYARD_RUN_AS"]:
            self._data_dir.chmod(0o711)  # jobs can reach their own directories in it, and list nothing
        self._start_process(_api_process(self._data_dir, environment))
        self._start_process(_worker_process(self._data_dir, environment))
        url = f"http://{url_host(self._options.host)}:{port}"
        token_file = Path(environment["SHARDYARD_ADMIN_TOKEN_FILE"])
        nodes = self._wait_until_ready(url, token_file)
        if nodes:
            record = {"url": url, "token_file": str(token_file), "pid": os.getpid()}
            (self._data_dir / SERVICE_FILE).write_text(json.dumps(record) + "\n")
            self._print_ready(url, token_file, nodes, time.monotonic() - begun)

    def watch(self) -> None:
        while not self._interrupts.count:
            self._processes.watch(TICK_SECONDS)

    def stop(self) -> None:
        (self._data_dir / SERVICE_FILE).unlink(missing_ok=True)
        if not self._started:
            return
        begun = time.monotonic()
        self._print_line("\nstopping; running attempts go back to the queue (Ctrl-C again: do not wait for them)")
        while self._started:
            name = self._started.pop()
            self._processes.stop(name)
            self._print_line(f"  {name} ended")
        self._print_line(f"stopped after {time.monotonic() - begun:.1f} s; `shardyard up` continues from here")

    # -- parts of a start --------------------------------------------------------------------------

    def _choose_port(self) -> int:
        """The port to listen on.

        Raises:
            ServiceError: another process listens there.
        """
        host, port = self._options.host, self._options.port
        if port and is_alive(_api_process(self._data_dir, {})):
            return port  # the API of an earlier `up` still runs; it is adopted or replaced next
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise ServiceError(
                    f"cannot listen on {host} port {port}: {error.strerror}. "
                    "Give another --port (0 takes a free one), or another --host."
                ) from error
            return int(probe.getsockname()[1])

    def _service_environment(self, port: int) -> dict[str, str]:
        return {
            "SHARDYARD_HOST": self._options.host,
            "SHARDYARD_PORT": str(port),
            "SHARDYARD_STORAGE": str(self._data_dir / "storage"),
            "SHARDYARD_STATE_DIR": str(self._data_dir / "node"),
            "SHARDYARD_ADMIN_TOKEN_FILE": str(self._data_dir / "admin.token"),
            "SHARDYARD_POOL": self._options.pool,
            "SHARDYARD_DEVICES": self._options.devices,
            "SHARDYARD_RUN_AS": os.environ.get("SHARDYARD_RUN_AS", ""),
        }

    def _start_redis(self) -> dict[str, str]:
        """The URLs of the Redis servers, which are started unless the caller named others."""
        if self._options.redis_url is not None:
            named = {"SHARDYARD_REDIS_URL": self._options.redis_url}
            if self._options.telemetry_url is not None:
                named["SHARDYARD_TELEMETRY_URL"] = self._options.telemetry_url
            return named
        program = embedded_redis.find_server()
        servers = {
            name: embedded_redis.prepare_redis(name, self._data_dir, program) for name in embedded_redis.SETTINGS
        }
        for server in servers.values():
            self._start_process(server.service)
        for server in servers.values():
            embedded_redis.wait_until_it_answers(server)
        telemetry_url = self._options.telemetry_url or servers["telemetry"].url
        return {"SHARDYARD_REDIS_URL": servers["control"].url, "SHARDYARD_TELEMETRY_URL": telemetry_url}

    def _start_process(self, service: ServiceProcess) -> None:
        how = self._processes.start(service)
        self._started.append(service.name)
        remark = {"started": "", "adopted": "  (still running, taken over)", "replaced": "  (in place of an older one)"}
        self._print_line(f"  {service.name:<10} pid {self._processes.pid(service.name)}{remark[how]}")

    def _wait_until_ready(self, url: str, token_file: Path) -> list[NodeView]:
        """The nodes of our pool once they are live; empty when a signal came first.

        Raises:
            ServiceError: a process ended, or the deadline passed.
        """
        deadline = time.monotonic() + READY_SECONDS
        with self._console.status("waiting for the API") as status, Client(url, "", attempts=1) as client:
            while not self._interrupts.count:
                missing = client.missing()
                nodes = self._live_nodes(url, token_file) if missing == {} else []
                if nodes:
                    return nodes
                waiting = "the API" if missing is None else _in_words(missing) or "the worker to show its devices"
                status.update(f"waiting for {waiting}")
                if time.monotonic() > deadline:
                    raise ServiceError(
                        f"waited {READY_SECONDS:.0f} s for {waiting}; the logs are in {self._data_dir / 'log'}"
                    )
                self._processes.watch(TICK_SECONDS, restart=False)
        return []

    def _live_nodes(self, url: str, token_file: Path) -> list[NodeView]:
        try:
            with Client(url, token_file.read_text().strip(), attempts=1) as client:
                nodes = client.nodes()
        except (OSError, ShardyardError):
            return []  # asked again until the deadline
        return [node for node in nodes if node.pool == self._options.pool and node.alive]

    # -- output ------------------------------------------------------------------------------------

    def _print_ready(self, url: str, token_file: Path, nodes: list[NodeView], seconds: float) -> None:
        self._print_line(f"[bold green]ready[/] in {seconds:.1f} s\n")
        self._print_line(f"  address     [bold]{url}[/]")
        self._print_line(f"  token file  {token_file}")
        for node in nodes:
            self._print_line(f"  pool        {node.pool}: {_describe_devices(node)} on {node.id}")
        if self._data_dir != default_data_dir().absolute():
            self._print_line(f"\n  for the commands in another terminal:  export SHARDYARD_DATA_DIR={self._data_dir}")
        self._print_line("\n  shardyard submit job.json --watch    shardyard list    Ctrl-C here stops the service\n")

    def _print_line(self, text: str) -> None:
        self._print_safely(text)

    def _print_warning(self, text: str) -> None:
        self._print_safely(f"! {text}", style="yellow", markup=False)

    def _print_safely(self, text: str, **how: Any) -> None:
        """Print a message; if that fails, for example on a full disk, the service continues."""
        with contextlib.suppress(OSError):
            self._console.print(text, highlight=False, soft_wrap=True, **how)


def _in_words(missing: Mapping[str, str]) -> str:
    return ", ".join(f"{part.replace('_', ' ')} ({state})" for part, state in missing.items())


def _describe_devices(node: NodeView) -> str:
    """A node's devices in words: `cpu:0-7 (8 virtual devices)`, `cuda:0-3 (4 x NVIDIA H100)`."""
    devices = node.devices
    names = sorted({device.name for device in devices})
    what = "virtual devices" if devices[0].kind == "cpu" else "x " + ", ".join(names)
    return f"{formatting.device_names(device.label for device in devices)} ({len(devices)} {what})"


def _api_process(data_dir: Path, environment: Mapping[str, str]) -> ServiceProcess:
    wanted = ("REDIS_URL", "TELEMETRY_URL", "STORAGE", "ADMIN_TOKEN_FILE", "HOST", "PORT")
    return _own_process(data_dir, "api", ("-m", "api"), environment, wanted, stop_seconds=API_STOP_SECONDS)


def _worker_process(data_dir: Path, environment: Mapping[str, str]) -> ServiceProcess:
    wanted = ("REDIS_URL", "TELEMETRY_URL", "STORAGE", "STATE_DIR", "POOL", "DEVICES", "RUN_AS")
    command = ("-m", "workers", "--stop-attempts-on-exit")
    return _own_process(
        data_dir,
        "worker",
        command,
        environment,
        wanted,
        stop_seconds=WORKER_STOP_SECONDS + Settings().checkpoint_seconds,
    )


def _own_process(
    data_dir: Path,
    name: str,
    command: tuple[str, ...],
    environment: Mapping[str, str],
    wanted: tuple[str, ...],
    stop_seconds: float,
) -> ServiceProcess:
    """One of our own programs. It gets only the settings that it reads, so that a change of another keeps it."""
    settings = {
        f"SHARDYARD_{key}": environment[f"SHARDYARD_{key}"] for key in wanted if f"SHARDYARD_{key}" in environment
    }
    # -P: a directory called `jobs` or `api` in the working directory must not shadow ours.
    argv = (sys.executable, "-P", *command)
    return ServiceProcess(
        name, argv, settings, data_dir / f"{name}.lock", data_dir / "log" / f"{name}.log", stop_seconds=stop_seconds
    )
