"""A service of the benchmark's own: `shardyard up` with the product's defaults, in a temporary directory."""

import io
import os
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from shardyard.cli.demo import running_service
from shardyard.client import Client
from shardyard.client.connection import LocalService


@dataclass(frozen=True, slots=True)
class Service:
    url: str
    token: str
    data_dir: Path
    pid: int  # of `up`; the others are its children
    client: Client

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1].rstrip("/"))

    def pid_of(self, word: str) -> int:
        """The one process of the service whose command line has `word` in it: `api`, `worker`, `control`, `telemetry`.

        Raises:
            LookupError: none has, or more than one.
        """
        own = psutil.Process(self.pid).children()
        found = [each.pid for each in own if any(word in part for part in each.cmdline())]
        if len(found) != 1:
            raise LookupError(f"{len(found)} processes of the service have {word!r} in their command line")
        return int(found[0])


@contextmanager
def service(devices: str = "cpu:2", *options: str) -> Iterator[Service]:
    """Ready to take jobs, and ended in order afterwards.

    Raises:
        ServiceError: it did not get ready, or its end was not a clean one.
    """
    with (
        tempfile.TemporaryDirectory(prefix="shardyard-bench-") as directory,
        running_service(Path(directory), devices, *options) as local,
        Client(local.url, _token(local)) as client,
    ):
        yield Service(local.url, _token(local), Path(directory), local.pid, client)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """What is started in here has these variables."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def linear_spec(strategy: str = "ddp", devices: int = 2, **program: Any) -> dict[str, Any]:
    """The smallest job that trains at all: a layer from 5 to 2 on 100 random vectors, four batches of 15 a rank."""
    return {
        "name": f"bench-{strategy}-{devices}",
        "resources": {"devices": devices},
        "parallelism": {"strategy": strategy},
        "program": {
            "kind": "recipe",
            "model": {"ref": "linear", "args": {"in_features": 5, "out_features": 2}},
            "data": {"ref": "random_vectors", "args": {"rows": 100, "features": 5}, "batch_size": 15},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "sgd", "args": {"lr": 0.01}},
            "max_steps": 4,
        }
        | program,
    }


def upload_program(running: Service, program: Path) -> str:
    """A file of Python as a bundle of the service's; its id."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.write(program, program.name)
    zipped.seek(0)
    return running.client.upload_bundle(zipped).id


def _token(local: LocalService) -> str:
    return local.token_file.read_text().strip()
