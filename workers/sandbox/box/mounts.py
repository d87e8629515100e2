"""The file system that ranks see: the host's, read-only, without what is the service's, and with directories of their
own. Everything here runs in the first process of a box, in its own mount namespace."""

import contextlib
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from workers.sandbox.box.plan import PRIVATE, RUN, BoxPlan
from workers.sandbox.box.syscalls import (
    MOUNT_ATTR_NODEV,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_REC,
    MS_REMOUNT,
    MS_SLAVE,
    mount,
    set_mount_attributes,
)

#: Device files that every program may use.
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
#: Links that programs expect in /dev.
DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
#: A cover holds no files, only directories and files to mount on.
_COVER_OPTIONS = "size=4m,mode=0711"
_HOSTS = f"{RUN}/hosts"
_OPTIONS_OF = dict.fromkeys(PRIVATE, "mode=1777") | {RUN: "size=4m,mode=0755"}


@dataclass(slots=True)
class BoxFiles:
    """The file system of one box. `sources` are descriptors of what has been covered, by path."""

    plan: BoxPlan
    sources: dict[str, int] = field(default_factory=dict)

    def build(self) -> None:
        """Make the part that no attempt changes.

        Raises:
            OSError: the kernel refuses a mount.
        """
        plan = self.plan
        mount("none", "/", None, MS_REC | MS_SLAVE)  # what the host unmounts goes here as well
        set_mount_attributes("/", add=MOUNT_ATTR_RDONLY, recursive=True)
        for path in (*plan.hidden, *plan.shown, "/dev"):
            with contextlib.suppress(FileNotFoundError):
                self.sources[path] = os.open(path, os.O_PATH | os.O_CLOEXEC)
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        self._build_dev()
        for path in (*PRIVATE[:2], *plan.covers):
            if os.path.isdir(path) and not os.path.islink(path):
                _cover(path, _OPTIONS_OF.get(path, _COVER_OPTIONS))
        for path in plan.shown:
            self._show_again(path)
        for path in plan.hidden:
            if self._is_visible(path):
                _cover(path, _COVER_OPTIONS)

    def resize(self, tmp_bytes: int, shm_bytes: int, files: int) -> None:
        """Set the sizes of the job's own directories in memory, and how many files each may have: empty ones take
        memory of the kernel, too, which only a cgroup would count."""
        for path, size in zip(PRIVATE, (tmp_bytes, tmp_bytes, shm_bytes), strict=True):
            if os.path.ismount(path):
                mount("none", path, None, MS_REMOUNT | MS_NOSUID | MS_NODEV, f"size={size},nr_inodes={files},mode=1777")

    def bind(self, *, source: str, target: str, writable: bool) -> None:
        """Show a directory of the service, which is hidden so far; `source` has no links in it.

        Raises:
            OSError: it is not there, or not the service's.
        """
        reachable = self._source_of(source)
        os.makedirs(target, exist_ok=True)
        mount(reachable, target, None, MS_BIND)
        clear = MOUNT_ATTR_RDONLY if writable else 0
        set_mount_attributes(target, add=MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, clear=clear)

    def name_loopback(self) -> None:
        """Have every name and address of a network that is a loopback alone resolve: else libraries ask a name server
        that is not there, and warn of it."""
        hosts = "/etc/hosts"
        if not os.path.exists(hosts):
            return
        with open(hosts) as file:
            known = file.read()
        with open(_HOSTS, "w") as file:
            file.write(f"{known.rstrip()}\n127.0.0.1 localhost {socket.gethostname()}\n")
            file.writelines(f"{address} localhost\n" for address in ("::1", "::ffff:127.0.0.1"))
        os.chmod(_HOSTS, 0o644)
        mount(_HOSTS, hosts, None, MS_BIND)

    def add_devices(self, names: Iterable[str]) -> None:
        """Show device files, by their paths below /dev."""
        for name in names:
            self._add_device(name)

    def _build_dev(self) -> None:
        mount("tmpfs", "/dev", "tmpfs", MS_NOSUID | MS_NOEXEC, "size=1m,mode=0755")
        for name in DEVICES:
            with contextlib.suppress(FileNotFoundError):
                self._add_device(name)
        for name, target in DEVICE_LINKS.items():
            os.symlink(target, f"/dev/{name}")
        for name in ("pts", "shm"):
            os.mkdir(f"/dev/{name}")
        mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
        mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")  # noqa: S108

    def _add_device(self, name: str) -> None:
        source = f"/proc/self/fd/{self.sources['/dev']}/{name}"
        if not os.path.exists(source):
            raise FileNotFoundError(source)
        target = f"/dev/{name}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        mount(source, target, None, MS_BIND)
        set_mount_attributes(target, clear=MOUNT_ATTR_RDONLY)

    def _show_again(self, path: str) -> None:
        """Show what a cover has hidden."""
        if path not in self.sources or self._is_visible(path):
            return
        descriptor = self.sources[path]
        source = f"/proc/self/fd/{descriptor}"
        if os.path.isdir(source):
            os.makedirs(path, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        mount(source, path, None, MS_BIND | MS_REC)

    def _is_visible(self, path: str) -> bool:
        """Whether a path still leads to what was there before anything was covered."""
        if path not in self.sources:
            return False
        try:
            return os.path.samestat(os.stat(path), os.stat(self.sources[path]))
        except OSError:
            return False

    def _source_of(self, path: str) -> str:
        """Where the host's directory of this path can still be reached."""
        for hidden in self.plan.hidden:
            if (path == hidden or path.startswith(hidden + "/")) and hidden in self.sources:
                return f"/proc/self/fd/{self.sources[hidden]}{path[len(hidden) :]}"
        raise FileNotFoundError(f"{path} is in no directory of the service")


def _cover(path: str, options: str) -> None:
    mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options)
