"""`shardyard up`: one command that runs the whole service on one machine, in one directory.

    start   control and telemetry Redis -> with --listen, Redis over TLS -> API -> workers -> ready when their nodes
            have shown their devices
    stop    workers (their attempts go back to the queue) -> API -> Redis

There is one worker, or one for each virtual node. Workers end first because their attempts must still be able to write
how they ended; Redis ends last because everybody writes to it.
"""

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, Self

import httpx
from rich.console import Console
from rich.markup import escape

from api.http.exposure import UnsafeToStart
from api.http.tls import ServerCertificate, choose_certificate
from jobs.model.settings import Settings
from jobs.storage.target import parse_target
from jobs.store.acl import RedisRole
from jobs.support import fs, secret_keys
from jobs.support.service_manager import take_service_manager
from shardyard import formatting
from shardyard.client import Client, endpoints
from shardyard.client.connection import SERVICE_FILE, default_data_dir, url_host
from shardyard.client.transport import trust_certificate
from shardyard.contract.errors import ShardyardError
from shardyard.contract.fleet import NodeView
from shardyard.service import embedded_redis
from shardyard.service.box_notice import describe_box, has_no_box, refuse_unboxed
from shardyard.service.listening.invitations import invite
from shardyard.service.listening.listener import Listener, gate_of, make_admin_token, open_listener
from shardyard.service.processes import ProcessGroup, ServiceError, ServiceProcess, is_alive, sole_owner
from shardyard.service.redis_room import RedisRoom
from shardyard.service.secret_key_file import find_key_file
from shardyard.service.service_programs import api_process, worker_process
from shardyard.service.start_checks import check_devices, check_redis_url, make_data_directory, read_settings
from shardyard.service.virtual_nodes import PlannedWorker, find_other_workers, plan_workers, release_ballast

ADMIN_TOKEN = "admin.token"  # noqa: S105  (a file)
DEFAULT_HOST = "127.0.0.1"
READY_SECONDS = 120.0
#: As long as the API's codes are good.
_LINK_MINUTES = 15
#: How often `up` looks whether a signal has come.
TICK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class UpOptions:
    host: str = DEFAULT_HOST
    port: int = 8000
    data_dir: Path = field(default_factory=default_data_dir)
    devices: str = "auto"
    pool: str = "default"
    redis_url: str | None = None
    telemetry_url: str | None = None
    jobs_unboxed: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure_http: bool = False
    nodes: int = 1  # more than one: virtual ones
    listen: str | None = None  # serves other machines, which join, at this address
    redis_port: int = 6380


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
    _check_options(options)
    make_data_directory(data_dir)
    manager = take_service_manager()
    with sole_owner(data_dir / "up.lock"), InterruptCounter() as interrupts:
        run = _ServiceRun(options, data_dir, console, interrupts)
        try:
            run.start()
            if not interrupts.count:
                manager.tell_ready("takes jobs")
            run.watch()
        finally:
            manager.tell_stopping()
            run.stop()


def _check_options(options: UpOptions) -> None:
    """
    Raises:
        ServiceError: something of it cannot be, which a process of the service would say less clearly.
    """
    read_settings(pool=options.pool)
    check_devices(options.devices)
    check_redis_url("--redis-url", options.redis_url)
    check_redis_url("--telemetry-url", options.telemetry_url)


class _ServiceRun:
    """One run of `up`, from its first process to its last."""

    def __init__(self, options: UpOptions, data_dir: Path, console: Console, interrupts: InterruptCounter) -> None:
        self._options = options
        self._data_dir = data_dir
        self._console = console
        self._interrupts = interrupts
        self._certificate: ServerCertificate | None = None
        self._listener: Listener | None = None  # where others join
        self._started: list[tuple[str, ...]] = []  # names of processes that are stopped together
        self._workers: tuple[PlannedWorker, ...] = ()
        self._room: RedisRoom | None = None  # of the control Redis, where it is ours
        self._processes = ProcessGroup(say=self._print_warning, hurried=lambda: interrupts.count > 1)

    def start(self) -> None:
        """Start everything, in order, and wait until the service accepts jobs (or a signal comes)."""
        begun = time.monotonic()
        self._print_line(f"[bold]shardyard[/] on {escape(str(self._data_dir))}")
        if self._options.listen is not None:
            refuse_beside_listen(self._options)
            self._listener = open_listener(self._options.listen, self._options.redis_port, self._data_dir)
            made = self._listener.certificates
            self._options = replace(self._options, host=self._listener.address, tls_cert=made.chain, tls_key=made.key)
        self._certificate = _choose_certificate(self._options)
        self._workers = plan_workers(self._options.nodes, self._options.devices, Settings().node)
        port = self._choose_port()
        secret_keys.create_key_file(find_key_file(self._data_dir))
        if self._listener is not None:
            make_admin_token(self._data_dir / ADMIN_TOKEN)
        url = f"{'http' if self._certificate is None else 'https'}://{url_host(self._options.host)}:{port}"
        environment, redis = self._service_environment(port), self._start_redis(url)
        if environment["SHARDYARD_RUN_AS"]:
            self._data_dir.chmod(0o711)  # jobs can reach their own directories in it, and list nothing
        self._start_processes(api_process(self._data_dir, environment | redis.of_api))
        self._end_other_workers(environment)
        of_worker = environment | self._own_address() | redis.of_worker
        self._start_processes(*(worker_process(self._data_dir, of_worker, worker) for worker in self._workers))
        token_file = Path(environment["SHARDYARD_ADMIN_TOKEN_FILE"])
        nodes = self._wait_until_ready(url, token_file)
        if nodes:
            if not self._options.jobs_unboxed:
                refuse_unboxed(nodes, self._options.host)
            self._write_service_file(self._service_record(url, token_file))
            self._wait_until_open()
            self._print_ready(url, token_file, nodes, time.monotonic() - begun)

    def watch(self) -> None:
        while not self._interrupts.count:
            if self._room is not None:
                self._room.keep()
            if self._listener is not None:
                self._listener.keep_certificates(self._print_warning)
            self._processes.watch(TICK_SECONDS)

    def stop(self) -> None:
        self._set_service_file_aside()
        if not self._started:
            return
        begun = time.monotonic()
        self._print_line("\nstopping; running attempts go back to the queue (Ctrl-C again: do not wait for them)")
        while self._started:
            names = self._started.pop()
            self._processes.stop(*names)
            for name in names:
                self._print_line(f"  {name} ended")
        self._print_line(f"stopped after {time.monotonic() - begun:.1f} s; `shardyard up` continues from here")

    # -- parts of a start --------------------------------------------------------------------------

    def _choose_port(self) -> int:
        """The port to listen on.

        Raises:
            ServiceError: another process listens there.
        """
        host, port = self._options.host, self._options.port
        if port and is_alive(api_process(self._data_dir, {})):
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
        certificate = self._certificate
        files = {} if certificate is None else {"TLS_CERT": certificate.chain, "TLS_KEY": certificate.key}
        files |= {} if self._listener is None else {"JOIN_FILE": self._listener.join_file}
        return {f"SHARDYARD_{name}": str(path.absolute()) for name, path in files.items()} | {
            "SHARDYARD_HOST": self._options.host,
            "SHARDYARD_PORT": str(port),
            "SHARDYARD_STORAGE": _choose_storage(self._data_dir),
            "SHARDYARD_STATE_DIR": str(self._data_dir / "node"),
            "SHARDYARD_ADMIN_TOKEN_FILE": str(self._data_dir / ADMIN_TOKEN),
            "SHARDYARD_SECRET_KEY_FILE": str(find_key_file(self._data_dir)),
            "SHARDYARD_POOL": self._options.pool,
            "SHARDYARD_DEVICES": self._options.devices,
            "SHARDYARD_RUN_AS": os.environ.get("SHARDYARD_RUN_AS", ""),
            "SHARDYARD_JOBS_UNBOXED": "1" if self._options.jobs_unboxed else "0",
            "SHARDYARD_INSECURE_HTTP": "1" if self._options.insecure_http else "0",
        }

    def _own_address(self) -> dict[str, str]:
        """The address at which other machines reach the node here; nothing where they need not."""
        if self._listener is None or os.environ.get("SHARDYARD_NODE_ADDRESS"):
            return {}
        return {"SHARDYARD_NODE_ADDRESS": self._listener.ip}

    def _start_redis(self, url: str) -> "_RedisVariables":
        """The URLs of the Redis servers, which are started unless the caller named others. `url` is the API's, for
        those who join."""
        if self._options.redis_url is not None:
            named = {"SHARDYARD_REDIS_URL": self._options.redis_url}
            if self._options.telemetry_url is not None:
                named["SHARDYARD_TELEMETRY_URL"] = self._options.telemetry_url
            return _RedisVariables(named, named)
        program = embedded_redis.find_server()
        servers = {
            name: embedded_redis.prepare_redis(name, self._data_dir, program) for name in embedded_redis.SETTINGS
        }
        for server in servers.values():
            self._start_processes(server.service)
        for server in servers.values():
            embedded_redis.wait_until_it_answers(server)
            embedded_redis.set_users(server)
        self._room = RedisRoom(servers["control"], Settings().reserve_bytes, self._print_warning)
        self._room.keep()
        if self._listener is not None:
            self._start_processes(self._listener.gate(servers))
            self._listener.write_offer(url, servers)
        elif self._processes.end_survivor(gate_of(self._data_dir)):
            self._print_line("  redis-tls  ended: this start serves no other machines")
        control = servers["control"]
        telemetry = {role: self._options.telemetry_url or servers["telemetry"].url_of(role) for role in RedisRole}
        return _RedisVariables(
            {
                "SHARDYARD_REDIS_URL": control.url_of(RedisRole.API),
                "SHARDYARD_TELEMETRY_URL": telemetry[RedisRole.API],
            },
            {
                "SHARDYARD_REDIS_URL": control.url_of(RedisRole.WORKER),
                "SHARDYARD_TELEMETRY_URL": telemetry[RedisRole.WORKER],
                "SHARDYARD_SUPERVISOR_REDIS_URL": control.url_of(RedisRole.SUPERVISOR),
                "SHARDYARD_SUPERVISOR_TELEMETRY_URL": telemetry[RedisRole.SUPERVISOR],
            },
        )

    def _service_record(self, url: str, token_file: Path) -> dict[str, Any]:
        record = {"url": url, "token_file": str(token_file), "pid": os.getpid()}
        return (
            record if self._certificate is None else record | {"certificate": str(self._certificate.chain.absolute())}
        )

    def _set_service_file_aside(self) -> Path:
        """Have no service file. The next one is written where the last one was, since a full disk takes no new file."""
        aside = self._data_dir / f".{SERVICE_FILE}"
        with contextlib.suppress(FileNotFoundError):
            (self._data_dir / SERVICE_FILE).rename(aside)
        return aside

    def _write_service_file(self, record: dict[str, Any]) -> None:
        """Say where the service is, for the commands of this user; it serves without that, too."""
        aside = self._set_service_file_aside()
        try:
            fs.overwrite_file(aside, f"{json.dumps(record)}\n".encode())
            aside.rename(self._data_dir / SERVICE_FILE)
        except OSError as error:
            self._print_warning(f"{SERVICE_FILE} was not written ({error.strerror}): name the service with --url")

    def _start_processes(self, *services: ServiceProcess) -> None:
        """Start processes that are stopped together later."""
        self._started.append(())
        for service in services:
            how = self._processes.start(service)
            self._started[-1] += (service.name,)
            remark = {"adopted": "  (still running, taken over)", "replaced": "  (in place of an older one)"}
            self._print_line(f"  {service.name:<10} pid {self._processes.pid(service.name)}{remark.get(how, '')}")

    def _wait_until_open(self) -> None:
        if self._listener is not None:
            self._listener.wait_until_open(lambda: self._processes.watch(TICK_SECONDS, restart=False))

    def _end_other_workers(self, environment: Mapping[str, str]) -> None:
        """End what an earlier `up` has left that had another number of nodes."""
        for name in find_other_workers(self._data_dir, self._workers):
            unwanted = worker_process(self._data_dir, environment, PlannedWorker(name, node=""))
            if self._processes.end_survivor(unwanted):
                self._print_line(f"  {name:<10} ended: this start has a different number of nodes")
        release_ballast(Path(environment["SHARDYARD_STATE_DIR"]), self._workers)

    def _wait_until_ready(self, url: str, token_file: Path) -> list[NodeView]:
        """The live nodes of our pool once ours are among them; empty when a signal came first.

        Raises:
            ServiceError: a process ended, or the deadline passed.
        """
        deadline = time.monotonic() + READY_SECONDS
        with self._console.status("waiting for the API") as status, self._connect(url, "") as client:
            while not self._interrupts.count:
                missing = client.missing()
                nodes = self._live_nodes(url, token_file) if _can_serve(missing) else []
                if {worker.node for worker in self._workers} <= {node.id for node in nodes}:
                    if missing:
                        self._print_warning(f"no job starts until there is room: {_in_words(missing)}")
                    return nodes
                waiting = "the API" if missing is None else _in_words(missing) or "each worker to show its devices"
                status.update(f"waiting for {waiting}")
                if time.monotonic() > deadline:
                    raise ServiceError(
                        f"waited {READY_SECONDS:.0f} s for {waiting}; the logs are in {self._data_dir / 'log'}"
                    )
                self._processes.watch(TICK_SECONDS, restart=False)
        return []

    def _make_sign_in_link(self, url: str, token_file: Path) -> str:
        """An address at which a browser signs in without the token; "" where the service gives none, for example
        because others could read what the browser sends."""
        with contextlib.suppress(OSError, ShardyardError), self._connect(url, token_file.read_text().strip()) as client:
            return f"{url}/sign-in#code={client.call(endpoints.issue_sign_in_code()).code}"
        return ""

    def _read_network(self, url: str, token_file: Path) -> str:
        """The network that jobs of our pool get where they have a box with one of its own."""
        with contextlib.suppress(OSError, ShardyardError), self._connect(url, token_file.read_text().strip()) as client:
            return next((pool.network for pool in client.pools() if pool.name == self._options.pool), "none")
        return "none"

    def _connect(self, url: str, token: str) -> Client:
        """A client that asks once, and speaks to the service that has our certificate, if we have one."""
        if self._certificate is None:
            return Client(url, token, attempts=1)
        only = httpx.HTTPTransport(verify=trust_certificate(self._certificate.chain))
        return Client(url, token, attempts=1, transport=only)

    def _live_nodes(self, url: str, token_file: Path) -> list[NodeView]:
        try:
            with self._connect(url, token_file.read_text().strip()) as client:
                nodes = client.nodes()
        except (OSError, ShardyardError):
            return []  # asked again until the deadline
        return [node for node in nodes if node.pool == self._options.pool and node.alive]

    # -- output ------------------------------------------------------------------------------------

    def _print_ready(self, url: str, token_file: Path, nodes: list[NodeView], seconds: float) -> None:
        self._print_line(f"[bold green]ready[/] in {seconds:.1f} s\n")
        self._print_line(f"  address     [bold]{url}[/]")
        if link := self._make_sign_in_link(url, token_file):
            self._print_line(f"  dashboard   {link}  (signs you in once, within {_LINK_MINUTES} minutes)")
        self._print_line(f"  token file  {token_file}")
        network = self._read_network(url, token_file)
        for box, alike in groupby(nodes, key=lambda node: describe_box(node.box, network)):
            for node in (group := list(alike)):
                self._print_line(f"  pool        {node.pool}: {_describe_devices(node)} on {_describe_node(node)}")
            say = self._print_warning if has_no_box(group[0]) else self._print_line
            say(f"  box         {box}")
        if self._listener is not None:
            self._print_invitation(url, token_file)
        if self._data_dir != default_data_dir().absolute():
            self._print_line(f"\n  for the commands in another terminal:  export SHARDYARD_DATA_DIR={self._data_dir}")
        self._print_line("\n  shardyard submit job.json --watch    shardyard list    Ctrl-C here stops the service\n")

    def _print_invitation(self, url: str, token_file: Path) -> None:
        """Say what to type on another machine."""
        assert self._certificate is not None
        try:
            with self._connect(url, token_file.read_text().strip()) as client:
                command = invite(client, url, self._certificate.chain)
        except (OSError, ShardyardError) as error:
            self._print_warning(f"could not create a token to join with ({error}); `shardyard invite` tries again")
            return
        self._print_line("\n  on another machine, within the next day:\n")
        self._print_line(f"    {escape(command)}")

    def _print_line(self, text: str) -> None:
        self._print_safely(text)

    def _print_warning(self, text: str) -> None:
        self._print_safely(f"! {text}", style="yellow", markup=False)

    def _print_safely(self, text: str, **how: Any) -> None:
        """Print a message; if that fails, for example on a full disk, the service continues."""
        with contextlib.suppress(OSError):
            self._console.print(text, highlight=False, soft_wrap=True, **how)


def refuse_beside_listen(options: UpOptions) -> None:
    """Refuse what contradicts --listen, or would leave something unprotected: the API listens where others join, with
    the certificate that they trust.

    Raises:
        ServiceError: an option is one of those.
    """
    if options.host not in (DEFAULT_HOST, options.listen):
        raise ServiceError("give --listen or --host, not both: --listen says where the API listens, too")
    named = [
        option
        for option, value in (("--tls-cert", options.tls_cert), ("--tls-key", options.tls_key))
        if value is not None
    ]
    named += ["--insecure-http"] if options.insecure_http else []
    if named:
        raise ServiceError(f"--listen makes certificates of its own and serves only HTTPS: leave {named[0]} out")
    if options.redis_url is not None or options.telemetry_url is not None:
        raise ServiceError(
            "--listen is for the built-in Redis servers, which it gives TLS and a user for each role; with Redis "
            "servers of your own, put what joining machines get into SHARDYARD_JOIN_FILE of `shardyard api`"
        )


def _choose_storage(data_dir: Path) -> str:
    """A bucket, if SHARDYARD_STORAGE names one; else a directory in the data directory.

    Raises:
        ServiceError: it names a bucket that there cannot be.
    """
    named = os.environ.get("SHARDYARD_STORAGE", "").strip()
    if not named.startswith("s3:"):
        return str(data_dir / "storage")
    try:
        return parse_target(named, data_dir).url
    except ValueError as error:
        raise ServiceError(str(error)) from error


def _choose_certificate(options: UpOptions) -> ServerCertificate | None:
    try:
        return choose_certificate(options.host, options.tls_cert, options.tls_key, insecure_http=options.insecure_http)
    except UnsafeToStart as error:
        raise ServiceError(str(error)) from error


def _can_serve(missing: Mapping[str, str] | None) -> bool:
    """Whether the service answers, and lacks nothing. Where disks have too little room, nodes take no work, and there
    must be a service to make room with."""
    return missing is not None and (not missing or ("disks" in missing and missing.keys() <= {"disks", "nodes"}))


def _in_words(missing: Mapping[str, str]) -> str:
    return ", ".join(f"{part.replace('_', ' ')} ({state})" for part, state in missing.items())


def _describe_devices(node: NodeView) -> str:
    """A node's devices in words: `cpu:0-7 (8 virtual devices)`, `cuda:0-3 (4 x NVIDIA H100)`."""
    devices = node.devices
    names = sorted({device.name for device in devices})
    what = "virtual devices" if devices[0].kind == "cpu" else "x " + ", ".join(names)
    return f"{formatting.device_names(device.label for device in devices)} ({len(devices)} {what})"


def _describe_node(node: NodeView) -> str:
    return f"{node.id} (virtual node, {node.address})" if node.virtual else node.id


@dataclass(frozen=True, slots=True)
class _RedisVariables:
    """Variables with the URLs of both Redis servers, with the users of who gets them."""

    of_api: dict[str, str]
    of_worker: dict[str, str]
