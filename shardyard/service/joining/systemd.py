"""The worker of a node that joined as a unit of systemd."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from shardyard.contract.errors import InvalidRequest, Unavailable
from shardyard.service.joining.settings_file import NodeFiles

UNIT = "shardyard-worker.service"
UNITS = Path("/etc/systemd/system")
COMMAND_SECONDS = 60.0
#: Older ones cannot start a unit again in whose cgroup jobs still run.
LEAVES_JOBS = 254
_TEXT = """\
# One node, as `shardyard join --systemd` has set it up; `shardyard join` writes its settings.
[Unit]
Description=Shardyard worker
Wants=network-online.target
After=network-online.target

[Service]
EnvironmentFile={settings}
ExecStart={python} -P -m workers.node.worker_monitor{options}
Restart=on-failure
RestartSec=5
# The box around each job takes root, without what systemd could take from it; each job gets a cgroup below the unit's.
User=root
Delegate=yes
{subgroup}TasksMax=infinity
KillMode={kill_mode}

[Install]
WantedBy=multi-user.target
"""


def unit_text(files: NodeFiles, version: int) -> str:
    """For a systemd of this version. A newer one leaves running jobs alone when the worker starts again."""
    leaves = version >= LEAVES_JOBS
    return _TEXT.format(
        settings=files.settings,
        python=sys.executable,
        options="" if leaves else " --stop-attempts-on-exit",
        subgroup="DelegateSubgroup=shardyard-service\n" if leaves else "",
        kill_mode="process" if leaves else "mixed",
    )


def require_systemd() -> int:
    """The version of systemd here.

    Raises:
        InvalidRequest: there is none, or this is not root.
    """
    if os.geteuid() != 0:
        raise InvalidRequest("--systemd installs a unit of the system: run it as root, or start the worker without it")
    if shutil.which("systemctl") is None:
        raise InvalidRequest("there is no systemd here (systemctl is missing): leave --systemd out")
    found = re.match(r"systemd (\d+)", _run("systemctl", "--version"))
    return int(found[1]) if found else 0


def install_unit(files: NodeFiles, version: int) -> Path:
    """Write the unit, have it started now and at each boot, and started again if it ran. Harmless when repeated.

    Raises:
        Unavailable: systemd refuses, or the disk.
    """
    unit = UNITS / UNIT
    try:
        unit.write_text(unit_text(files, version))
    except OSError as error:
        raise Unavailable(f"{unit} cannot be written: {error.strerror}") from error
    _run("systemctl", "daemon-reload")
    _run("systemctl", "enable", UNIT)
    _run("systemctl", "restart", UNIT)
    return unit


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"`{' '.join(command)}`: {error}") from error
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise Unavailable(f"`{' '.join(command)}`: {said}")
    return done.stdout
