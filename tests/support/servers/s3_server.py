"""Servers that speak S3, and a bucket in them.

SeaweedFS is a store that people run; what a bucket must do is tested on that. moto was made for tests: it is there in a
second, takes any credentials, and is enough behind a proxy that fails (`s3_proxy`).
"""

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness.s3 import seaweedfs

MOTO, SEAWEEDFS = "moto", "seaweedfs"
START_SECONDS = 120.0


@contextmanager
def s3_bucket(directory: Path, bucket: str, server: str = MOTO) -> Iterator[str]:
    """The URL of a server that has a bucket, which is open to the credentials of `variables_of`."""
    with (seaweedfs if server == SEAWEEDFS else _moto)(directory, bucket) as url:
        yield url


@contextmanager
def _moto(directory: Path, bucket: str) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    log = directory / "s3.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=output, stderr=output)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
    try:
        while True:
            try:
                request = urllib.request.Request(f"{url}/{bucket}", method="PUT")
                urllib.request.urlopen(request, timeout=10).close()
                break
            except OSError:
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
        yield url
    finally:
        server.terminate()
        server.wait(10)
