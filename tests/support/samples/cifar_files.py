"""A small CIFAR-10, in both of the formats that its authors distribute, made of real images of digits."""

import struct
from pathlib import Path
from typing import Any

import numpy as np

from workers.training.recipes.cifar10 import BATCHES
from workers.training.recipes.data import DigitsArgs, digits

BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"


def make_small_cifar(directory: Path, rows: int = 40) -> None:
    """Write six batches of `rows` images each below `directory`, once per format."""
    for folder in (BINARY, PYTHON):
        (directory / folder).mkdir(parents=True)
    images, labels = _images()
    for number, name in enumerate((*BATCHES["train"], *BATCHES["test"])):
        chosen = slice(number * rows, (number + 1) * rows)
        write_batch(directory, name, images[chosen], labels[chosen])


def write_batch(directory: Path, name: str, images: Any, labels: Any) -> None:
    together = np.concatenate([labels[:, None].astype(np.uint8), images], axis=1)
    (directory / BINARY / f"{name}.bin").write_bytes(together.tobytes())
    (directory / PYTHON / name).write_bytes(pickled_by_python_2(images, labels.tolist()))


def _images() -> tuple[Any, Any]:
    """The digits, each pixel as 4 x 4 and in three colours: (N, 3072) uint8, and labels."""
    vectors, labels = digits(DigitsArgs()).tensors
    small = (vectors.numpy().reshape(-1, 8, 8) * 255).astype(np.uint8)
    large = np.kron(small, np.ones((4, 4), dtype=np.uint8))
    return np.repeat(large[:, None], 3, axis=1).reshape(len(large), -1), labels.numpy()


def pickled_by_python_2(images: Any, labels: list[int]) -> bytes:
    """A batch as Python 2 and the NumPy of its day pickled it: bytes are strings, and modules have their old names."""
    rows, width = images.shape
    dtype = (
        b"cnumpy\ndtype\n("
        + _text(b"u1")
        + b"K\x00K\x01tR(K\x03"
        + _text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00t"
        + _text(b"b")
        + b"tR(K\x01("
        + _number(rows)
        + _number(width)
        + b"t"
        + dtype
        + b"I00\n"
        + _text(images.tobytes())
        + b"tb"
    )
    listed = b"](" + b"".join(_number(label) for label in labels) + b"e"
    name = _text(b"batch_label") + _text(b"testing batch 1 of 1")
    return b"\x80\x02}(" + name + _text(b"labels") + listed + _text(b"data") + array + b"u."


def _text(value: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(value)) + value


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)
