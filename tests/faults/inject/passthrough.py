"""A file system in user space that passes everything on to a directory, as a network file system does to its server.

Stopped by a signal, it is a server that has gone away: whoever opens, reads, writes or looks something up waits for it,
and goes on when it is back. Run it as `python -m tests.faults.inject.passthrough SOURCE MOUNTPOINT`; it needs root and
`/dev/fuse`, and speaks the kernel's protocol by itself (linux/fuse.h), with what a job does to its storage and no more.
"""

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Callable

MAX_WRITE = 128 * 1024
_HEADER, _ANSWER = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
_ATTRIBUTES = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4Q2I")
_SETATTR = struct.Struct("<IIQQQQQQIIIIIIII")
_MODE, _UID, _GID, _SIZE, _ATIME, _MTIME = 1, 2, 4, 8, 16, 32
_FLAGS_OF_INIT = 1 << 3 | 1 << 5  # O_TRUNC comes with open, and writes are larger than a page


class Passthrough:
    """Answers requests about the files below `source`. Nodes are numbered when they are looked up, and keep the path
    that they were renamed to."""

    def __init__(self, source: str, device: int) -> None:
        self._device = device
        self._paths = {1: source}
        self._nodes = {source: 1}
        self._handles: dict[int, int] = {}  # one of each node that is open
        self._lists: dict[int, list[tuple[str, os.stat_result]]] = {}
        self._operations: dict[int, Callable[[int, bytes], bytes]] = {
            1: lambda node, data: self._look_up(self._child(node, data)),
            3: lambda node, data: self._attributes_of(node),
            4: self._set_attributes,
            5: lambda node, data: os.fsencode(os.readlink(self._paths[node])),
            6: self._link_symbolically,
            9: self._make_directory,
            10: self._unlink,
            11: self._remove_directory,
            12: self._rename,
            13: self._link,
            14: self._open,
            15: self._read,
            16: self._write,
            17: self._read_sizes,
            18: self._release,
            20: self._sync,
            25: lambda node, data: b"",  # flush
            26: self._answer_init,
            27: self._open_directory,
            28: self._read_directory,
            29: self._release_directory,
            30: self._sync_directory,
            35: self._create,
        }

    def serve(self) -> None:
        """Answer until the file system is unmounted."""
        while True:
            try:
                request = os.read(self._device, MAX_WRITE + 4096)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue
                return  # ENODEV: unmounted
            length, opcode, unique, node, *_ = _HEADER.unpack_from(request)
            if opcode in (2, 42, 36):  # forget, batch forget, interrupt: have no answer
                continue
            try:
                answer, code = self._operations[opcode](node, request[_HEADER.size : length]), 0
            except KeyError:
                answer, code = b"", -errno.ENOSYS
            except OSError as error:
                answer, code = b"", -(error.errno or errno.EIO)
            try:
                os.write(self._device, _ANSWER.pack(_ANSWER.size + len(answer), code, unique) + answer)
            except FileNotFoundError:
                continue  # it was interrupted meanwhile

    # -- names -----------------------------------------------------------------------------------------

    def _child(self, node: int, name: bytes) -> str:
        return os.path.join(self._paths[node], os.fsdecode(name.rstrip(b"\0")))

    def _look_up(self, path: str) -> bytes:
        attributes = _pack_attributes(os.lstat(path))
        node = self._nodes.setdefault(path, len(self._paths) + 1)
        self._paths[node] = path
        return _ENTRY.pack(node, 0, 0, 0, 0, 0) + attributes

    def _rename(self, node: int, data: bytes) -> bytes:
        (into,) = struct.unpack_from("<Q", data)
        old, new, _ = data[8:].split(b"\0", 2)
        before, after = self._child(node, old), self._child(into, new)
        os.rename(before, after)
        self._nodes.pop(after, None)
        for path, number in list(self._nodes.items()):
            if path == before or path.startswith(before + "/"):
                del self._nodes[path]
                self._nodes[after + path[len(before) :]] = number
                self._paths[number] = after + path[len(before) :]
        return b""

    def _link(self, node: int, data: bytes) -> bytes:
        (existing,) = struct.unpack_from("<Q", data)
        path = self._child(node, data[8:])
        os.link(self._paths[existing], path)
        return self._look_up(path)

    def _link_symbolically(self, node: int, data: bytes) -> bytes:
        name, target, _ = data.split(b"\0", 2)
        path = self._child(node, name)
        os.symlink(os.fsdecode(target), path)
        return self._look_up(path)

    def _make_directory(self, node: int, data: bytes) -> bytes:
        mode, mask = struct.unpack_from("<II", data)
        path = self._child(node, data[8:])
        os.mkdir(path, mode & ~mask)
        return self._look_up(path)

    def _unlink(self, node: int, data: bytes) -> bytes:
        path = self._child(node, data)
        os.unlink(path)
        self._nodes.pop(path, None)
        return b""

    def _remove_directory(self, node: int, data: bytes) -> bytes:
        path = self._child(node, data)
        os.rmdir(path)
        self._nodes.pop(path, None)
        return b""

    # -- attributes ------------------------------------------------------------------------------------

    def _attributes_of(self, node: int) -> bytes:
        try:
            found = os.lstat(self._paths[node])
        except FileNotFoundError:  # a temporary file that has no name any more
            if node not in self._handles:
                raise
            found = os.fstat(self._handles[node])
        return struct.pack("<QII", 0, 0, 0) + _pack_attributes(found)

    def _set_attributes(self, node: int, data: bytes) -> bytes:
        valid, _, _, size, _, atime, mtime, _, atime_ns, mtime_ns, _, mode, _, uid, gid, _ = _SETATTR.unpack_from(data)
        path = self._paths[node]
        if valid & (_UID | _GID):
            os.lchown(path, uid if valid & _UID else -1, gid if valid & _GID else -1)
        if valid & _MODE:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & _SIZE:
            os.truncate(path, size)
        if valid & (_ATIME | _MTIME):
            now = os.lstat(path)
            new = atime * 10**9 + atime_ns if valid & _ATIME else now.st_atime_ns
            os.utime(path, ns=(new, mtime * 10**9 + mtime_ns if valid & _MTIME else now.st_mtime_ns))
        return self._attributes_of(node)

    def _read_sizes(self, node: int, data: bytes) -> bytes:
        found = os.statvfs(self._paths[node])
        counts = found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree
        return struct.pack("<5Q4I6I", *counts, found.f_bsize, found.f_namemax, found.f_frsize, 0, *[0] * 6)

    # -- files -----------------------------------------------------------------------------------------

    def _open(self, node: int, data: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", data)
        self._handles[node] = handle = os.open(self._paths[node], flags & ~os.O_NOFOLLOW)
        return struct.pack("<QII", handle, 0, 0)

    def _create(self, node: int, data: bytes) -> bytes:
        flags, mode, mask, _ = struct.unpack_from("<4I", data)
        path = self._child(node, data[16:])
        handle = os.open(path, flags | os.O_CREAT, mode & ~mask)
        entry = self._look_up(path)
        self._handles[self._nodes[path]] = handle
        return entry + struct.pack("<QII", handle, 0, 0)

    def _read(self, node: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", data)
        return os.pread(handle, size, offset)

    def _write(self, node: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", data)
        return struct.pack("<II", os.pwrite(handle, data[40 : 40 + size], offset), 0)

    def _sync(self, node: int, data: bytes) -> bytes:
        os.fsync(struct.unpack_from("<Q", data)[0])
        return b""

    def _release(self, node: int, data: bytes) -> bytes:
        (handle,) = struct.unpack_from("<Q", data)
        os.close(handle)
        if self._handles.get(node) == handle:
            del self._handles[node]
        return b""

    # -- directories -----------------------------------------------------------------------------------

    def _open_directory(self, node: int, data: bytes) -> bytes:
        with os.scandir(self._paths[node]) as entries:
            found = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        handle = max(self._lists, default=0) + 1
        self._lists[handle] = found
        return struct.pack("<QII", handle, 0, 0)

    def _read_directory(self, node: int, data: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<QQI", data)
        packed = b""
        for number, (name, found) in enumerate(self._lists[handle][offset:], offset + 1):
            raw = os.fsencode(name)
            entry = struct.pack("<QQII", found.st_ino, number, len(raw), found.st_mode >> 12) + raw
            entry += bytes(-len(entry) % 8)
            if len(packed) + len(entry) > size:
                break
            packed += entry
        return packed

    def _release_directory(self, node: int, data: bytes) -> bytes:
        del self._lists[struct.unpack_from("<Q", data)[0]]
        return b""

    def _sync_directory(self, node: int, data: bytes) -> bytes:
        handle = os.open(self._paths[node], os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        return b""

    def _answer_init(self, node: int, data: bytes) -> bytes:
        _, minor, readahead, flags = struct.unpack_from("<4I", data)
        known = flags & _FLAGS_OF_INIT
        return struct.pack("<4IHHII32x", 7, min(minor, 31), readahead, known, 12, 9, MAX_WRITE, 1)


def _pack_attributes(found: os.stat_result) -> bytes:
    times = found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns
    seconds, fractions = [time // 10**9 for time in times], [time % 10**9 for time in times]
    owners = found.st_mode, found.st_nlink, found.st_uid, found.st_gid, found.st_rdev & 0xFFFFFFFF, found.st_blksize, 0
    return _ATTRIBUTES.pack(found.st_ino, found.st_size, found.st_blocks, *seconds, *fractions, *owners)


def mount(device: int, mountpoint: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    if libc.mount(b"passthrough", os.fsencode(mountpoint), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), f"cannot mount {mountpoint}")


def main() -> None:
    source, mountpoint = sys.argv[1:]
    os.umask(0)
    device = os.open("/dev/fuse", os.O_RDWR)
    real = os.open(source, os.O_PATH)  # what is below the mount point, if that is the same directory
    mount(device, mountpoint)
    Passthrough(f"/proc/self/fd/{real}/.", device).serve()


if __name__ == "__main__":
    main()
