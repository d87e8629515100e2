"""A real systemd for a test's units, as first process of namespaces of its own. Needs root, and systemd's program.

It sees this machine's files, but none of its units: only targets, and what the test gives it. /tmp, /run, /etc and the
cgroups are its own, so that nothing it does to them reaches the machine.
"""

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAM = Path("/lib/systemd/systemd")
CGROUPS = Path("/sys/fs/cgroup")
PATIENCE_SECONDS = 60.0

#: $1 is the test's directory, which stays where it is; $2 is where cgroups are mounted: "mixed", or "v2".
_FIRST_STEPS = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /run && mkdir /run/lock /run/site /run/targets /run/etc /run/etc-work
cp /lib/systemd/system/*.target /run/targets
mount --bind "$1" /run/site
for directory in /tmp /var/tmp /var/lib; do
  mode=$(stat -c %a $directory) && mount -t tmpfs -o "mode=$mode" tmpfs $directory
done
mkdir -p "$1" && mount --bind /run/site "$1"
mount --bind /run/targets "$(readlink -f /lib/systemd/system)"
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/etc-work /etc
rm -rf /etc/systemd/system && mkdir /etc/systemd/system
cp -r "$1"/units/* /etc/systemd/system
echo 0123456789abcdef0123456789abcdef > /etc/machine-id
umount -R /sys/fs/cgroup
if [ "$2" = mixed ]; then
  mount -t tmpfs tmpfs /sys/fs/cgroup && mkdir /sys/fs/cgroup/unified /sys/fs/cgroup/systemd
  mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
  mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
else
  mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
export container=lxc
exec /lib/systemd/systemd --system --unit=basic.target --log-target=console --show-status=no
"""


class SystemdManager:
    def __init__(self, directory: Path) -> None:
        """`directory` has `units/`, which are there from the start."""
        self._directory = directory
        self._groups = [root / f"shardyard-test-{uuid.uuid4().hex[:8]}" for root in _cgroup_roots()]
        self._starter: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def start(self) -> None:
        """Raises:
        RuntimeError: this machine does not allow it; the message says what was refused.
        """
        kind = "mixed" if len(self._groups) > 1 else "v2"
        for group in self._groups:
            group.mkdir()
        join = " && ".join(f"echo $$ > {group}/cgroup.procs" for group in self._groups)
        unshare = "unshare --pid --fork --mount --uts --ipc --cgroup --kill-child=KILL"
        with (self._directory / "systemd.log").open("wb") as log:
            self._starter = subprocess.Popen(
                ["sh", "-c", f'{join} && exec {unshare} sh -c "$0" sh "$@"', _FIRST_STEPS, str(self._directory), kind],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self._starter.poll() is not None:
                break
            self._pid = self._pid or self._find_first_process()
            if self._pid and self.run("systemctl", "is-active", "basic.target", check=False).stdout.strip() == "active":
                return
            time.sleep(0.05)
        raise RuntimeError((self._directory / "systemd.log").read_text()[-2000:] or "systemd does not start")

    def run(self, *command: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a command where the units run."""
        inside = ["nsenter", "--target", str(self._pid), "--pid", "--mount", "--uts", "--ipc", "--cgroup", "--"]
        done = subprocess.run([*inside, *command], capture_output=True, text=True, timeout=600)
        assert not check or done.returncode == 0, f"{command}: {done.stdout} {done.stderr} {self.logs()}"
        return done

    def show(self, unit: str, name: str) -> str:
        """A property of a unit."""
        return self.run("systemctl", "show", "--value", f"--property={name}", unit).stdout.strip()

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-3000:]}" for path in self._directory.glob("*.log"))

    def close(self) -> None:
        if self._starter is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self._pid or self._starter.pid, 9)  # with it, by the kernel, everything in there
        self._starter.kill()
        self._starter.wait(PATIENCE_SECONDS)
        for group in self._groups:
            _remove_cgroup(group)

    def _find_first_process(self) -> int:
        assert self._starter is not None
        children = Path(f"/proc/{self._starter.pid}/task/{self._starter.pid}/children")
        with suppress(OSError, IndexError):
            pid = int(children.read_text().split()[0])
            return pid if Path(f"/proc/{pid}/exe").readlink().name == "systemd" else 0
        return 0


def _cgroup_roots() -> list[Path]:
    """Where systemd needs a cgroup: with version 1 beside version 2, or with version 2 alone."""
    mixed = [CGROUPS / "systemd", CGROUPS / "unified"]
    return mixed if all(path.is_dir() for path in mixed) else [CGROUPS]


def _remove_cgroup(group: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while group.exists() and time.monotonic() < deadline:
        for path in sorted(group.rglob("*"), key=lambda path: len(path.parts), reverse=True):
            if path.is_dir():
                with suppress(OSError):
                    path.rmdir()
        with suppress(OSError):
            group.rmdir()  # busy until the last process is gone
        time.sleep(0.01)


def why_no_systemd() -> str:
    """What this machine lacks; "" if it can be tried."""
    if os.geteuid() != 0:
        return "only root can make the namespaces that systemd needs"
    if not PROGRAM.exists():
        return f"there is no {PROGRAM}"
    missing = [name for name in ("unshare", "nsenter", "systemctl") if shutil.which(name) is None]
    return f"there is no {missing[0]}" if missing else ""


@contextmanager
def systemd_manager(directory: Path, units: dict[str, str]) -> Iterator[SystemdManager]:
    """`units` are files of `/etc/systemd/system`, by name; a drop-in is named `<unit>.d/<name>.conf`."""
    (directory / "units").mkdir(parents=True)
    for name, text in units.items():
        path = directory / "units" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    manager = SystemdManager(directory)
    try:
        manager.start()
        yield manager
    finally:
        manager.close()
