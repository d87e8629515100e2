"""CIFAR-10 as its authors distribute it, in either of its two formats.

The binary format has one byte of label and 3,072 bytes of image (red, green, blue planes of 32 x 32) per row. The
Python format pickles a dict of a uint8 array and a list of labels for each batch. Pickles can run any code, so they are
read by an unpickler that knows only the parts of an array: it never looks up a class or a function of any module.
"""

import io
import pickle
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import torch
from torch.utils.data import Dataset

from workers.runtime.context import RejectedByWorker
from workers.training.recipes.files import DataRoot

IMAGE_BYTES = 3 * 32 * 32
BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
#: Where the archives of the two formats unpack to.
FOLDERS = ("", "cifar-10-batches-bin", "cifar-10-batches-py")
CLASSES = 10


class Cifar10Images(Dataset[tuple[torch.Tensor, int]]):
    """Rows of (3, 32, 32) float32 in -1..1, and a label in 0..9. They are stored as bytes, and converted row by row."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self._images = torch.from_numpy(images.reshape(-1, 3, 32, 32))
        self._labels = labels.tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self._images[index].float() / 127.5 - 1, self._labels[index]


def load_images(root: DataRoot, path: str, split: str, field: str) -> Cifar10Images:
    """The train split (five batches) or the test split (one) below `path`.

    Raises:
        RejectedByWorker: the directory holds neither format, or a file of it is damaged.
    """
    names, folder, suffix = BATCHES[split], *_find_batches(root, path, BATCHES[split], field)
    images, labels = [], []
    for name in names:
        where = f"{folder}/{name}{suffix}"
        with root.open(where, field) as file:
            try:
                pixels, numbers = _READERS[suffix](file)
                _check_arrays(pixels, numbers)
            except (ValueError, pickle.UnpicklingError, EOFError, KeyError, TypeError, AttributeError) as error:
                raise RejectedByWorker(f"{field}: {where} is not a batch of CIFAR-10: {error}") from None
        images.append(pixels)
        labels.append(numbers)
    return Cifar10Images(np.concatenate(images), np.concatenate(labels))


def _find_batches(root: DataRoot, path: str, names: tuple[str, ...], field: str) -> tuple[str, str]:
    """The folder that has every batch, and the suffix of its files."""
    for folder in (f"{path}/{below}" if below else path for below in FOLDERS):
        present = root.names(folder, field)
        for suffix in _READERS:
            if present >= {name + suffix for name in names}:
                return folder, suffix
    raise RejectedByWorker(
        f"{field}: {path!r} holds no CIFAR-10; expected {names[0]}.bin and so on (binary format) or {names[0]} "
        "(Python format) there, as the archives of its authors unpack"
    )


def _read_binary(file: BinaryIO) -> tuple[np.ndarray, np.ndarray]:
    raw = np.frombuffer(file.read(), dtype=np.uint8)
    if len(raw) % (1 + IMAGE_BYTES):
        raise ValueError(f"{len(raw)} bytes are not a whole number of rows of {1 + IMAGE_BYTES} bytes")
    rows = raw.reshape(-1, 1 + IMAGE_BYTES)
    return rows[:, 1:].copy(), rows[:, 0].astype(np.int64)


def _read_pickled(file: BinaryIO) -> tuple[np.ndarray, np.ndarray]:
    batch = _ArraysOnly(io.BytesIO(file.read()), encoding="bytes").load()
    if not isinstance(batch, dict):
        raise TypeError(f"it holds a {type(batch).__name__}, not a dict")
    named = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
    labels = named["labels"]
    labels = labels.bytes_of("") if isinstance(labels, _ArrayStandIn) else labels
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < CLASSES for label in labels):
        raise ValueError(f"its labels are not a list of whole numbers from 0 to {CLASSES - 1}")
    return named["data"].bytes_of("data"), np.array(labels, dtype=np.int64)


_READERS = {".bin": _read_binary, "": _read_pickled}


def _check_arrays(pixels: np.ndarray, labels: np.ndarray) -> None:
    if pixels.shape != (len(labels), IMAGE_BYTES):
        raise ValueError(f"{len(labels)} labels, but images of shape {pixels.shape}")
    if not len(labels):
        raise ValueError("it has no rows")
    if labels.max() >= CLASSES:
        raise ValueError(f"a label of {labels.max()}; they go to {CLASSES - 1}")


# -- reading a pickle without running it -----------------------------------------------------------


class _DType:
    """Stands in for numpy.dtype: remembers what it was called with."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code.decode("latin-1") if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        """Ignore byte order and similar state, which has no meaning for single bytes."""


class _ArrayStandIn:
    """Stands in for numpy.ndarray: holds the state, and makes an array of bytes of it when all of it fits."""

    def __init__(self) -> None:
        self._state: Any = None

    def __setstate__(self, state: Any) -> None:
        _, *self._state = state  # version, then what matters

    @classmethod
    def from_buffer(cls, raw: Any, dtype: Any, shape: Any, order: Any) -> "_ArrayStandIn":
        made = cls()
        made._state = [shape, dtype, order == "F", bytes(raw)]
        return made

    def bytes_of(self, name: str) -> np.ndarray:
        """The array, which must be of type uint8, with two dimensions, and in C order."""
        shape, dtype, fortran, raw = self._state
        fits = isinstance(raw, bytes) and isinstance(shape, tuple) and len(shape) == 2
        if not fits or not isinstance(dtype, _DType) or dtype.code not in ("u1", "uint8") or fortran:
            raise ValueError(f"its {name or 'labels'} are not rows of bytes")
        return np.frombuffer(raw, dtype=np.uint8).reshape(shape).copy()


def _reconstruct(*_: Any) -> _ArrayStandIn:
    return _ArrayStandIn()


def _encode(text: Any, codec: Any) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    if codec not in ("latin1", b"latin1") or not isinstance(text, str):
        raise pickle.UnpicklingError("only bytes may be encoded")
    return text.encode("latin-1")


def _stand_ins() -> Iterator[tuple[tuple[str, str], Any]]:
    yield ("_codecs", "encode"), _encode
    yield ("numpy", "ndarray"), _ArrayStandIn
    yield ("numpy", "dtype"), _DType
    for core in ("numpy.core", "numpy._core"):
        yield (f"{core}.multiarray", "_reconstruct"), _reconstruct
        yield (f"{core}.numeric", "_frombuffer"), _ArrayStandIn.from_buffer


_STAND_INS = dict(_stand_ins())


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, and only arrays are admitted") from None
