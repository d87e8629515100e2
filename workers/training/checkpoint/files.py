"""The directory of one checkpoint while ranks write it: each file is hashed while it is written, synced, and
renamed."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from jobs.protocol.records import SavedFile

CHUNK_BYTES = 16 * 1024 * 1024
SMALL_BYTES = 256 * 1024
#: What safetensors calls torch's types.
NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Unsaveable(Exception):
    """Something in the state of a run cannot be written without pickle."""


class HashingFile:
    """A file that is being written. `write` never raises, because an exception inside torch's writer ends the process.
    After the first error, which `error` holds, nothing more is written. `helper` hashes large pieces meanwhile."""

    def __init__(self, fd: int, helper: Executor) -> None:
        self._fd = fd
        self._helper = helper
        self._hash = hashlib.sha256()
        self.bytes = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if view.nbytes:
            view = view.cast("B")
        for begin in range(0, view.nbytes, CHUNK_BYTES):
            self._write_chunk(view[begin : begin + CHUNK_BYTES])
        return view.nbytes

    def flush(self) -> None:
        """Nothing is held back."""

    def _write_chunk(self, view: memoryview) -> None:
        self.bytes += len(view)
        hashed = self._helper.submit(self._hash.update, view) if len(view) > SMALL_BYTES else None
        if hashed is None:
            self._hash.update(view)
        try:
            unwritten = view
            while unwritten and self.error is None:
                unwritten = unwritten[os.write(self._fd, unwritten) :]
        except OSError as error:
            self.error = error
        if hashed is not None:
            hashed.result()  # the bytes are the caller's again

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error

    def sha256(self) -> str:
        return self._hash.hexdigest()


class CheckpointDraft:
    """The directory `<drafts>/<step>/`. All ranks write into it at once, each its own files."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, name: str, fill: Callable[[HashingFile], None]) -> SavedFile:
        """Write a file; it gets its final name once it is complete and on disk.

        Raises:
            OSError: it could not be written; nothing of it is left.
        """
        part = f".{name}.part"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part, dir_fd=self._fd)  # of an earlier try
        fd = os.open(part, _NEW_FILE, 0o600, dir_fd=self._fd)
        try:
            with ThreadPoolExecutor(1) as helper:
                file = HashingFile(fd, helper)
                fill(file)
            file.raise_error()
            os.fsync(fd)
            os.rename(part, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=self._fd)
            raise
        finally:
            os.close(fd)
        return SavedFile(name, file.bytes, file.sha256())

    def sync(self) -> None:
        """The names are on the disk, too."""
        os.fsync(self._fd)


@contextlib.contextmanager
def open_draft(drafts: Path, step: int) -> Iterator[CheckpointDraft]:
    """The draft of one step, created unless another rank has created it.

    Raises:
        OSError: it cannot be made, or there is something else in its place.
    """
    above = os.open(drafts, _DIRECTORY)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(str(step), 0o700, dir_fd=above)
        fd = os.open(str(step), _DIRECTORY, dir_fd=above)
    finally:
        os.close(above)
    try:
        yield CheckpointDraft(fd)
    finally:
        os.close(fd)


def write_tensors(file: HashingFile, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors in the format of safetensors.

    The library writes to a path, or makes the whole file in memory; here it is hashed as it goes to the disk, and
    only one tensor at a time is copied, if it has to be. As in the library's `save_model`, a tensor that has several
    names is written once, and the file's metadata names it for the others (`safetensors.torch.load_model` knows).

    Raises:
        Unsaveable: the format does not have a tensor's type.
    """
    first: dict[tuple[object, ...], str] = {}
    again: dict[str, str] = {}
    header: dict[str, Any] = {}
    at = 0
    for name, tensor in sorted(tensors.items(), key=lambda entry: -entry[1].element_size()):  # so that all are aligned
        kept = first.setdefault(tensor_identity(name, tensor), name)
        if kept != name:
            again[name] = kept
            continue
        if tensor.dtype not in NAMES or tensor.layout != torch.strided:
            raise Unsaveable(f"{name} is a tensor of {tensor.dtype} in layout {tensor.layout}, which safetensors lacks")
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps({"__metadata__": {"format": "pt"} | again} | header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in header:
        file.write(_tensor_bytes(tensors[name]))


def tensor_identity(name: str, tensor: torch.Tensor) -> tuple[object, ...]:
    """An identity that is the same for two names of one tensor. Empty tensors have no address."""
    if tensor.numel() == 0:
        return (name,)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _tensor_bytes(tensor: torch.Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy()
