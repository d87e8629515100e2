"""An S3 server of the benchmark's own: moto's, in a process, with its objects in memory. It needs the extra `dev`."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

START_SECONDS = 120.0
BUCKET = "bench"


@contextmanager
def s3_server() -> Iterator[Mapping[str, str]]:
    """The variables of a service whose files are to be in a bucket there, or in that of the environment, if it names
    one.

    Raises:
        RuntimeError: it does not answer.
    """
    if os.environ.get("SHARDYARD_STORAGE", "").startswith("s3:"):
        yield {}
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(f"{url}/{BUCKET}")
        yield {
            "SHARDYARD_STORAGE": f"s3://{BUCKET}/service",
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "bench",
            "AWS_SECRET_ACCESS_KEY": "bench",
            "AWS_REGION": "us-east-1",
        }
    finally:
        server.kill()
        server.wait(START_SECONDS)


def _make_bucket(url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, method="PUT"), timeout=10).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the S3 server does not answer: {error}") from error
            time.sleep(0.1)
