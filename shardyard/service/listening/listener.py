"""The part of `up` that serves other machines: certificates, the gate to Redis, and the file for those that join."""

import ipaddress
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import msgspec

from jobs.model.join_offer import JoinOffer, require_protected
from jobs.protocol.names import DEFAULT_TENANT
from jobs.store.accounts.tokens import Scope, issue_token
from jobs.store.acl import RedisRole, user_name
from jobs.support import fs
from shardyard.client.connection import url_host
from shardyard.service.embedded_redis import EmbeddedRedis
from shardyard.service.listening.certificates import CertificatesUnusable, ServiceCertificates, keep_certificates
from shardyard.service.processes import ServiceError, ServiceProcess

#: How often certificates are looked at: they are renewed two months before their end.
LOOK_SECONDS = 3600.0
OPEN_SECONDS, STOP_SECONDS = 30.0, 5.0
JOIN_FILE = "join.json"


@dataclass(slots=True)
class Listener:
    """`address` is what others connect to, as it is in the certificate: an address or a name of this machine. `ip` is
    the address that it means."""

    address: str
    ip: str
    ports: Mapping[str, int]  # of the control and the telemetry Redis
    data_dir: Path
    certificates: ServiceCertificates
    _looked_at: float = 0.0

    @property
    def join_file(self) -> Path:
        return self.data_dir / JOIN_FILE

    def keep_certificates(self, say: Callable[[str], None]) -> None:
        """Renew certificates that are old; servers take the new ones by themselves. Cheap when called often."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return
        self._looked_at = now
        try:
            keep_certificates(self.certificates.chain.parent, (self.address, self.ip))
        except CertificatesUnusable as error:
            say(str(error))

    def gate(self, servers: Mapping[str, EmbeddedRedis]) -> ServiceProcess:
        """The process through which other machines reach Redis."""
        passages = (f"{self.ports[name]}={server.socket}" for name, server in servers.items())
        return gate_of(self.data_dir, self.ip, str(self.certificates.chain), str(self.certificates.key), *passages)

    def write_offer(self, url: str, servers: Mapping[str, EmbeddedRedis]) -> None:
        """Write what the API gives to machines that join.

        Raises:
            ServiceError: it cannot be written.
        """
        offer = JoinOffer(
            url=url,
            redis_url=self._url(servers["control"], RedisRole.WORKER),
            telemetry_url=self._url(servers["telemetry"], RedisRole.WORKER),
            supervisor_redis_url=self._url(servers["control"], RedisRole.SUPERVISOR),
            supervisor_telemetry_url=self._url(servers["telemetry"], RedisRole.SUPERVISOR),
            authority=self.certificates.authority.read_text(),
        )
        require_protected(offer)
        try:
            fs.write_private(self.join_file, msgspec.json.encode(offer))
        except OSError as error:
            raise ServiceError(f"{self.join_file} cannot be written: {error.strerror}") from error

    def wait_until_open(self, watch: Callable[[], None]) -> None:
        """Wait until others can reach Redis. `watch` raises where a process has ended.

        Raises:
            ServiceError: that takes too long.
        """
        deadline = time.monotonic() + OPEN_SECONDS
        context = ssl.create_default_context(cafile=str(self.certificates.authority))
        for name, port in self.ports.items():
            while not _answers(self.ip, port, context):
                watch()
                if time.monotonic() > deadline:
                    raise ServiceError(
                        f"the {name} Redis cannot be reached over TLS at {self.address} port {port} after "
                        f"{OPEN_SECONDS:.0f} s; see {self.data_dir / 'log' / 'redis-tls.log'}"
                    )

    def _url(self, server: EmbeddedRedis, role: RedisRole) -> str:
        """A URL that others use; they add the file of the authority."""
        login = f"{user_name(role)}:{quote(server.role_passwords[role], safe='')}"
        return f"rediss://{login}@{url_host(self.address)}:{self.ports[server.name]}/0"


def gate_of(data_dir: Path, *arguments: str) -> ServiceProcess:
    """The gate of a data directory, as a process."""
    return ServiceProcess(
        "redis-tls",
        (sys.executable, "-P", "-m", "shardyard.service.listening.redis_gate", *arguments),
        {},
        data_dir / "redis-tls.lock",
        data_dir / "log" / "redis-tls.log",
        stop_seconds=STOP_SECONDS,
    )


def open_listener(address: str, redis_port: int, data_dir: Path) -> Listener:
    """Prepare to serve others at an address or name of this machine. The control Redis gets the port, the telemetry
    Redis the next one; with 0, both get free ones.

    Raises:
        ServiceError: it is not an address of this machine, or one that others could not connect to; or there can be no
            certificates.
    """
    ip = resolve_own_address(address)
    try:
        certificates = keep_certificates(data_dir / "tls", (address.strip("[]"), ip))
    except CertificatesUnusable as error:
        raise ServiceError(str(error)) from error
    ports = _free_ports(ip, 2) if redis_port == 0 else [redis_port, redis_port + 1]
    return Listener(
        address.strip("[]"), ip, dict(zip(("control", "telemetry"), ports, strict=True)), data_dir, certificates
    )


def make_admin_token(file: Path) -> None:
    """Make the operator's token, if there is none: the API makes one itself only where nobody else can reach it.

    Raises:
        ServiceError: the file cannot be written.
    """
    if file.exists():
        return
    text, _ = issue_token(DEFAULT_TENANT, {Scope.ADMIN}, "operator", created=0)
    try:
        fs.write_private(file, f"{text}\n".encode())
    except OSError as error:
        raise ServiceError(f"{file} cannot be written: {error.strerror}") from error


def resolve_own_address(address: str) -> str:
    """The IP address of this machine that an address or name means.

    Raises:
        ServiceError: it means none, several machines, or another machine.
    """
    try:
        found = socket.getaddrinfo(address.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ServiceError(f"--listen {address}: there is no such address or name: {error.strerror}") from error
    ip = ipaddress.ip_address(str(found[4][0]).partition("%")[0])
    if ip.is_unspecified or ip.is_multicast:
        raise ServiceError(
            f"--listen {address}: name one address of this machine, by which others reach it; it goes into the "
            "certificate (`ip -brief address` shows those that there are)"
        )
    with socket.socket(found[0], socket.SOCK_STREAM) as probe:
        try:
            probe.bind((str(ip), 0))
        except OSError as error:
            raise ServiceError(
                f"--listen {address}: {ip} is not an address of this machine: {error.strerror}"
            ) from error
    return str(ip)


def _free_ports(ip: str, count: int) -> list[int]:
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    probes = [socket.socket(family, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((ip, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _answers(ip: str, port: int, context: ssl.SSLContext) -> bool:
    """Whether a Redis greets us over TLS. It refuses who has not logged in, and that is its answer."""
    try:
        with (
            socket.create_connection((ip, port), timeout=1.0) as line,
            context.wrap_socket(line, server_hostname=ip) as secured,
        ):
            secured.sendall(b"PING\r\n")
            return secured.recv(1) != b""
    except OSError:
        time.sleep(0.05)
        return False
