"""Services whose jobs run in a box, on hosts that allow more or less of it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from jobs.model.records import BOX_RIGHTS
from jobs.support import secret_keys
from tests.integration.workers import reachable
from tests.integration.workers.places import a_place
from tests.integration.workers.service import MODULE, Service
from tests.support.samples.certificates import make_certificate
from tests.support.servers.redis_server import redis_server

#: root; root as in most containers; an account without rights, in user namespaces.
BoxMode = Literal["full", "cgroups read-only", "no root"]
MODES: tuple[BoxMode, ...] = ("full", "cgroups read-only", "no root")
#: For tests with bombs, which take much of the machine from whatever runs beside them: the quick ones are in one mode.
QUICK_IN_FULL_BOX = pytest.mark.parametrize(
    "mode", ["full", *(pytest.param(mode, marks=pytest.mark.slow) for mode in MODES[1:])], indirect=True, scope="module"
)
#: The account of the worker without root, which nobody has.
UID = 64_321
LIMITS: dict[str, Any] = {
    "job_memory_bytes": 1 << 30,
    "rank_processes": 200,
    "job_shm_bytes": 64 << 20,
    "job_tmp_bytes": 32 << 20,
    "job_disk_bytes": 64 << 20,
    "job_files": 10_000,
    "job_log_bytes": 400_000,
}
_READ_ONLY = """
for place in $(awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts); do mount -o remount,bind,ro "$place" || exit 1; done
exec "$@"
"""


@contextmanager
def boxed_service(mode: BoxMode) -> Iterator[Service]:
    """Redis and a worker, whose jobs have `LIMITS`; every account can pass the directories that lead there."""
    owner = UID if mode == "no root" else 0
    with a_place() as place, _passable_files(), redis_server(place / "redis", unixsocketperm="777") as server:
        Path(server.url.removeprefix("unix://")).parent.chmod(0o711)
        keys, tls = place / "keys" / "secret.key", place / "tls"
        for directory in (place, place / "storage", place / "state", keys.parent, tls):
            directory.mkdir(exist_ok=True)
            os.chown(directory, owner, owner)
        secret_keys.create_key_file(keys)
        os.chown(keys, owner, owner)
        _, tls_key = make_certificate(tls)
        service = Service(place, server, box="auto", secret_key_file=str(keys), tls_key=str(tls_key), **LIMITS)
        (place / "redis").chmod(0o700)
        try:
            service.start_worker(_command(mode))
            yield service
        finally:
            service.close()


def find_lacks(mode: BoxMode, service: Service) -> set[str]:
    """The rights that a job does not have for itself in this mode. Whether root can have cgroups is up to the host."""
    box = service.node().info.box
    assert box is not None
    of_cgroups = {"memory", "pids"}
    return {
        "full": {right for right in BOX_RIGHTS if right in of_cgroups and not box.has_right(right)},
        "cgroups read-only": of_cgroups,
        "no root": of_cgroups | {"account"},
    }[mode]


@contextmanager
def _passable_files() -> Iterator[None]:
    """Have a worker without root read the bundles that a test puts into its storage."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def without_cgroups() -> list[str]:
    """The command of a worker of root's that can make no cgroup, and neither can what it starts."""
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", _READ_ONLY, "sh", *MODULE]


def _command(mode: BoxMode) -> list[str]:
    return {
        "full": MODULE,
        "cgroups read-only": without_cgroups(),
        "no root": reachable.command("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", *MODULE),
    }[mode]
