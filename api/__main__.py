"""`python -m api`: one API process, from the settings in its environment. Its only output is its log."""

import gc
import sys

# Nearly all that is made until the process listens stays: collections would go through it again and again.
if __name__ == "__main__":
    gc.disable()

import os
import signal
import socket

import redis
import structlog
import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from redis.exceptions import RedisError

from api.app import create_app
from api.http.exposure import UnsafeToStart
from api.http.protocol import DeadlineProtocol, enable_keepalive
from api.http.tls import ServerCertificate, choose_certificate
from jobs.files import identity
from jobs.model.settings import Settings
from jobs.store.client import connect
from jobs.support import logging_config
from jobs.support.descriptors import raise_descriptor_limit
from jobs.support.service_manager import ServiceManager, take_service_manager

log = structlog.get_logger("api")

DRAIN_SECONDS = 10
KEEP_ALIVE_SECONDS = 15
BACKLOG = 1024
#: A request makes some hundreds of objects, and hardly ever a cycle of them.
GC_THRESHOLD = 10_000
#: How long a thread that computes keeps the interpreter when another one wants it. The event loop wants it after each
#: wait: with Python's 5 ms, one plan in a thread made every request beside it take a multiple of that.
SWITCH_SECONDS = 0.0005
#: Descriptors for all streams and other connections, where the system lets us have them; many systems begin with 1024.
WANTED_DESCRIPTORS = 8192
#: Of them, those kept back for files and Redis: connections of clients get the others, but some at least.
KEPT_DESCRIPTORS, MIN_CONNECTIONS = 256, 64
#: Of uvicorn's loop.
TICKS_PER_SECOND = 10
#: Ticks between two looks at the certificate's files.
CERTIFICATE_TICKS = 5 * TICKS_PER_SECOND


class GracefulServer(uvicorn.Server):
    """Lets go of streams, and of requests that wait for a change, before it waits for all requests to end. Serves HTTPS
    where it has a certificate."""

    def __init__(self, config: uvicorn.Config, certificate: ServerCertificate | None, manager: ServiceManager) -> None:
        super().__init__(config)
        self._certificate = certificate
        self._manager = manager
        seconds = manager.watchdog_seconds
        self._alive_ticks = None if seconds is None else max(1, int(seconds * TICKS_PER_SECOND / 2))
        config.load()
        if certificate is not None:
            config.ssl = certificate.context  # uvicorn would make one that allows other ciphers, and keep it for ever

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._manager.tell_ready("answers requests")

    async def on_tick(self, counter: int) -> bool:
        if self._alive_ticks is not None and counter % self._alive_ticks == 0:
            self._manager.tell_alive()
        if self._certificate is not None and counter % CERTIFICATE_TICKS == 0:
            self._certificate.reload_renewed()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        app: FastAPI = self.config.app  # type: ignore[assignment]  # uvicorn takes other things too
        self._manager.tell_stopping()
        app.state.release_clients()
        await super().shutdown(sockets)


class ClusterRefused(Exception):
    """The scripts of the control store touch several keys at once, which Redis Cluster does not allow."""


def main() -> int:
    os.umask(identity.UMASK)
    manager = take_service_manager()
    logging_config.configure_logging("INFO")
    try:
        settings = Settings()
        logging_config.configure_logging(settings.log_level)
        app = create_app(settings)
        certificate = choose_certificate(
            settings.host, settings.tls_cert, settings.tls_key, insecure_http=settings.insecure_http
        )
        refuse_cluster(settings.control_url(), "SHARDYARD_REDIS_URL")
        refuse_cluster(settings.telemetry(), "SHARDYARD_TELEMETRY_URL")
        for doubt in find_durability_risks(settings.control_url()):
            log.warning("control_redis_may_lose_jobs", why=doubt)
        listener = open_listener(settings.host, settings.port)
    except (UnsafeToStart, ClusterRefused, ValidationError, ValueError, OSError) as error:
        log.error("cannot_start", error=str(error))
        return 2
    server = GracefulServer(
        uvicorn.Config(
            app,
            loop="uvloop",
            http=DeadlineProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        ),
        certificate,
        manager,
    )
    descriptors = raise_descriptor_limit(WANTED_DESCRIPTORS)
    DeadlineProtocol.max_connections = max(MIN_CONNECTIONS, descriptors - KEPT_DESCRIPTORS)
    gc.collect()
    gc.freeze()  # what is there now stays: collections need not go through it again and again
    gc.set_threshold(GC_THRESHOLD)
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.enable()
    log.info("listening", host=settings.host, port=listener.getsockname()[1], tls=certificate is not None)
    # uvicorn raises the signal that ended it once more, when it has drained: that must not look like a crash.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    server.run(sockets=[listener])
    log.info("stopped")
    return 0 if server.started else 3


def open_listener(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 selects a free one.

    Raises:
        OSError: the address cannot be used.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
        enable_keepalive(listener)
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


def refuse_cluster(url: str, setting: str) -> None:
    """Raises:
    ClusterRefused: `url` is a Redis Cluster. A server that is away now is not asked again: its
        replies to the scripts would say so.
    """
    client: redis.Redis = connect(url)
    try:
        enabled = client.info("cluster").get("cluster_enabled")  # Redis and Valkey disagree on the name of the mode
    except RedisError:
        return
    finally:
        client.close()
    if enabled:
        raise ClusterRefused(f"{setting} is a Redis Cluster; Shardyard needs a single server, or one with replicas")


def find_durability_risks(url: str) -> list[str]:
    """What a server says of itself that speaks against keeping accepted jobs there. Nothing of one that is away."""
    client: redis.Redis = connect(url)
    try:
        kept, memory = client.info("persistence"), client.info("memory")
    except RedisError:
        return []
    finally:
        client.close()
    doubts = []
    if not kept.get("aof_enabled"):
        doubts.append("it has no append-only file: set `appendonly yes` and `appendfsync always`")
    policy = memory.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        doubts.append(f"it drops keys when memory is short ({policy}): set `maxmemory-policy noeviction`")
    return doubts


if __name__ == "__main__":
    sys.exit(main())
