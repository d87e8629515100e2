"""The units of deploy/systemd: how exposed they are by systemd's own measure, and a real systemd that runs them."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from jobs.store.acl import RedisRole, RedisServerKind, user_name
from shardyard.client import Client
from shardyard.service.redis_users import user_lines
from tests.support.servers.redis_server import redis_server
from tests.support.servers.systemd_manager import SystemdManager, systemd_manager, why_no_systemd

ROOT = Path(__file__).parents[3]
UNITS = ROOT / "deploy" / "systemd"
OPERATORS = (ROOT / "docs" / "operators.md").read_text()
ADMIN = "the-admin-token-of-these-tests"
PATIENCE_SECONDS = 60.0
#: Versions of systemd differ by a little in how they count.
TOLERANCE = 0.3


def units() -> list[str]:
    return sorted(path.name for path in UNITS.glob("*.service"))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("unit", units())
def test_a_unit_is_no_more_exposed_than_the_documents_say(unit: str) -> None:
    said = re.search(rf"^\| `{re.escape(unit)}` \|[^|]*\| ([0-9.]+)", OPERATORS, re.MULTILINE)
    assert said is not None, "docs/operators.md has a row for each unit"
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(UNITS / unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) <= float(said[1]) + TOLERANCE


@pytest.mark.parametrize("unit", units())
def test_no_line_of_a_unit_is_there_twice_or_without_a_value(unit: str) -> None:
    lines = [line for line in (UNITS / unit).read_text().splitlines() if "=" in line and not line.startswith("#")]
    several = {"SystemCallFilter", "Environment"}
    names = [line.partition("=")[0] for line in lines if line.partition("=")[0] not in several]
    assert len(names) == len(set(names))
    assert all(line.partition("=")[2] for line in lines)


def drop_in(command: str, directory: Path, environment: dict[str, str], **more: str) -> str:
    """What a test changes of a unit: where the program and its files are, and nothing that it may or may not do, but
    that this Python may lie in somebody's home."""
    (directory / "environment").write_text("".join(f"{name}={value}\n" for name, value in environment.items()))
    homes = {path for path in (Path(sys.base_prefix).resolve(), ROOT) if path.is_relative_to("/root")}
    lines = [
        "[Service]",
        f"EnvironmentFile=\nEnvironmentFile={directory}/environment",
        f"ExecStart=\nExecStart={sys.executable} -m shardyard {command}",
        f"WorkingDirectory={ROOT}",
        f"BindPaths={directory}",
        f"StandardOutput=append:{directory}/{command.split()[0]}.log\nStandardError=inherit",
        *(f"ProtectHome=tmpfs\nBindReadOnlyPaths={path}" for path in homes),
        *(f"{name}={value}" for name, value in more.items()),
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def running_units(directory: Path, **drop_ins: str) -> Iterator[SystemdManager]:
    """systemd with the project's units, and the test's drop-ins for them."""
    if why := why_no_systemd():
        pytest.skip(why)
    files = {name: (UNITS / name).read_text() for name in units()}
    files |= {f"{name.replace('_', '-')}.service.d/test.conf": text for name, text in drop_ins.items()}
    with systemd_manager(directory, files) as manager:
        yield manager


def eventually(look: Callable[[], Any], what: Callable[[], str]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)
    return found


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def a_job() -> dict[str, Any]:
    program = {
        "kind": "recipe",
        "model": {"ref": "digits_cnn"},
        "data": {"ref": "digits", "args": {"split": "train"}, "batch_size": 64},
        "loss": {"ref": "cross_entropy"},
        "optimizer": {"ref": "sgd", "args": {"lr": 0.05}},
        "max_steps": 4,
    }
    return {"program": program, "resources": {"devices": 2}, "parallelism": {"strategy": "ddp"}}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_api_and_worker_run_a_job_under_their_units(tmp_path: Path) -> None:
    with ExitStack() as stack:
        passwords = {role: f"of-{role}" for role in RedisRole}
        (tmp_path / "redis").mkdir()
        acl = tmp_path / "redis" / "users.acl"
        acl.write_text(
            "\n".join([*user_lines(passwords, list(RedisServerKind)), "user default on nopass ~* &* +@all\n"])
        )
        at, port = free_port(), free_port()
        stack.enter_context(redis_server(tmp_path / "redis", port=f"{at}", bind="127.0.0.1", aclfile=str(acl)))

        def url(role: RedisRole) -> str:
            return f"redis://{user_name(role)}:{passwords[role]}@127.0.0.1:{at}/0"

        site = tmp_path / "site"
        for name in ("api", "worker", "storage", "state"):
            (site / name).mkdir(parents=True)
        common = {"SHARDYARD_STORAGE": f"{site}/storage", "SHARDYARD_RESERVE_BYTES": f"{64 << 20}"}
        api = common | {
            "SHARDYARD_REDIS_URL": url(RedisRole.API),
            "SHARDYARD_ADMIN_TOKEN": ADMIN,
            "SHARDYARD_PORT": f"{port}",
        }
        worker = common | {
            "SHARDYARD_REDIS_URL": url(RedisRole.WORKER),
            "SHARDYARD_SUPERVISOR_REDIS_URL": url(RedisRole.SUPERVISOR),
            "SHARDYARD_SUPERVISOR_TELEMETRY_URL": url(RedisRole.SUPERVISOR),
            "SHARDYARD_STATE_DIR": f"{site}/state",
            "SHARDYARD_NODE": "n1",
        }
        shared = {"ReadWritePaths": str(site)}
        binds = {"BindPaths": str(site)}
        manager = stack.enter_context(
            running_units(
                tmp_path,
                shardyard_api=drop_in("api", site / "api", api, WatchdogSec="3", **shared, **binds),
                shardyard_worker=drop_in("worker --devices cpu:2", site / "worker", worker, **binds),
            )
        )
        address = f"http://127.0.0.1:{port}"

        def start(unit: str) -> None:
            done = manager.run("systemctl", "start", unit, check=False)
            logs = "\n".join(path.read_text()[-5000:] for path in site.glob("*/*.log"))
            assert done.returncode == 0, f"{done.stderr} {logs}"

        start("shardyard-api")
        assert httpx.get(f"{address}/healthz").status_code == 200  # `start` has waited until it answers
        assert manager.show("shardyard-api", "StatusText") == "answers requests"
        start("shardyard-worker")
        assert manager.show("shardyard-worker", "StatusText") == "node n1 takes jobs of pool default"
        with Client(address, ADMIN) as client:
            (node,) = client.nodes()
            assert node.alive
            assert node.box.level == "full"
            job = client.submit(a_job())
            assert job.wait(2 * PATIENCE_SECONDS).status.state == "succeeded", job.status
            assert (site / "storage" / "jobs" / "default" / job.id / "1" / "report.json").exists()
            assert job.report().devices

            pid = manager.show("shardyard-api", "MainPID")
            manager.run("kill", "-STOP", pid)  # as one whose event loop stands still
            eventually(
                lambda: (
                    manager.show("shardyard-api", "MainPID") not in (pid, "0")
                    and manager.show("shardyard-api", "ActiveState") == "active"
                ),
                manager.logs,
            )
            assert client.job(job.id).status.state == "succeeded"

        for unit in ("shardyard-worker", "shardyard-api"):
            manager.run("systemctl", "stop", unit)
            assert manager.show(unit, "Result") == "success", unit


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_whole_service_runs_a_job_under_its_unit(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    command = f"up --data-dir {site}/data --port {free_port()} --devices cpu:2"
    settings = {"SHARDYARD_RESERVE_BYTES": f"{64 << 20}"}
    with running_units(tmp_path, shardyard=drop_in(command, site, settings)) as manager:
        done = manager.run("systemctl", "start", "shardyard", check=False)
        assert done.returncode == 0, (site / "up.log").read_text()
        assert manager.show("shardyard", "StatusText") == "takes jobs"
        token = (site / "data" / "admin.token").read_text().strip()
        address = re.search(r"http://127.0.0.1:\d+", (site / "up.log").read_text())
        assert address is not None
        with Client(address[0], token) as client:
            assert client.nodes()[0].box.level == "full"
            job = client.submit(a_job())
            assert job.wait(2 * PATIENCE_SECONDS).status.state == "succeeded", job.status
        manager.run("systemctl", "stop", "shardyard")
        assert manager.show("shardyard", "Result") == "success"
        assert "stopping" in (site / "up.log").read_text()
