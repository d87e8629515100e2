"""Checksums of the first rows of a pass, by index, or of its first batches: whether two ranks read the same rows shows
in these alone, since each may have a data set of its own. No torch here."""

import zlib
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from workers.probe.shapes import tensors_in

#: Rows of a pass that are looked at, tensors of a batch, and numbers of a row.
MAX_ROWS, MAX_TENSORS, MAX_NUMBERS = 512, 2, 64
#: Batches of an iterable data set that are looked at, and numbers of each.
MAX_BATCHES, MAX_BATCH_NUMBERS = 3, 4096

RowSums = tuple[int, ...]  # an index, and a checksum of each tensor's row


class RowContents:
    """Takes the batches of a pass, and their indices, which may come later."""

    def __init__(self) -> None:
        self.wants_more = True
        self._taken = 0
        self._unpaired: deque[list[RowSums]] = deque()
        self._rows: list[RowSums] = []

    def add_batch(self, batch: Any) -> None:
        """A batch as it was delivered; what cannot be read ends this."""
        try:
            sums = _row_sums(batch)
        except Exception:  # noqa: BLE001  (tensors of any kind, in modes of any kind)
            sums = []
        self._taken += len(sums)
        self.wants_more = bool(sums) and self._taken < MAX_ROWS
        self._unpaired.append(sums)

    def add_indices(self, indices: Sequence[Any]) -> None:
        """The indices of the next batch."""
        if self._unpaired:
            sums = self._unpaired.popleft()
            if len(sums) == len(indices):
                self._rows += [(int(index), *row) for index, row in zip(indices, sums, strict=True)]

    def rows(self) -> tuple[RowSums, ...]:
        return tuple(self._rows[:MAX_ROWS])

    def batches(self) -> tuple[int, ...]:
        return ()


class BatchContents:
    """Takes the first batches of a pass whose rows have no indices: a checksum of the first tensor of each."""

    def __init__(self) -> None:
        self.wants_more = True
        self._batches: list[int] = []

    def add_batch(self, batch: Any) -> None:
        """A batch as it was delivered; what cannot be read ends this."""
        try:
            self._batches.append(_batch_sum(batch))
            self.wants_more = len(self._batches) < MAX_BATCHES
        except Exception:  # noqa: BLE001  (tensors of any kind, in modes of any kind)
            self.wants_more = False

    def add_indices(self, indices: Sequence[Any]) -> None:
        """There are none."""

    def rows(self) -> tuple[RowSums, ...]:
        return ()

    def batches(self) -> tuple[int, ...]:
        return tuple(self._batches)


def _row_sums(batch: Any) -> list[RowSums]:
    columns = [_tensor_sums(tensor) for tensor in islice(tensors_in(batch), MAX_TENSORS) if tensor.dim()]
    return list(zip(*columns, strict=True))


def _tensor_sums(tensor: Any) -> list[int]:
    rows = tensor.detach().cpu().reshape(len(tensor), -1)
    some = rows[:, :: 1 + rows.shape[1] // MAX_NUMBERS].double().numpy()
    return [zlib.crc32(row.tobytes()) for row in some]


def _batch_sum(batch: Any) -> int:
    tensor = next(tensors_in(batch))
    numbers = tensor.detach().cpu().reshape(-1)
    some = numbers[:: 1 + len(numbers) // MAX_BATCH_NUMBERS].double().numpy()
    return zlib.crc32(some.tobytes(), zlib.crc32(repr(tuple(tensor.shape)).encode()))
