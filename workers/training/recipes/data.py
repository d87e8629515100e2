"""The built-in data sets. All yield (input, target), unless told that there is no target."""

import importlib.util
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import numpy as np
import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from torch.utils.data import Dataset, TensorDataset, default_collate

from workers.runtime.context import RejectedByWorker
from workers.training.recipes import cifar10 as cifar10_files
from workers.training.recipes.files import DataRoot
from workers.training.recipes.models import BuiltInPart, RecipeArgs, Width

TEST_ROWS = 360
TRAIN_ROWS = 1437


class RandomVectorsArgs(RecipeArgs):
    rows: Annotated[int, Field(ge=1, le=10_000_000)]
    features: Width
    classes: Annotated[int, Field(ge=1, le=65_536)] = 2


class TensorRows(TensorDataset):
    """A data set in whole tensors: the rows of a batch are indexed at once, which is several times as fast as stacking
    single rows. A row without target is the input itself, not a tuple of one."""

    def __getitem__(self, index: Any) -> Any:
        row = super().__getitem__(index)  # type: ignore[no-untyped-call]
        return row if len(row) > 1 else row[0]

    def __getitems__(self, indices: list[int]) -> "RowBatch":
        chosen = torch.tensor(indices)
        return RowBatch(tensor.index_select(0, chosen) for tensor in self.tensors)


class RowBatch(tuple[torch.Tensor, ...]):
    """A batch of rows that were indexed at once."""


def collate_rows(rows: Any) -> Any:
    """What a DataLoader makes of the rows of a batch."""
    if not isinstance(rows, RowBatch):
        return default_collate(rows)
    return list(rows) if len(rows) > 1 else rows[0]


def random_vectors(args: RandomVectorsArgs) -> TensorDataset:
    """Vectors from a standard normal: (features,) float32 and a label in [0, classes).

    The label is the largest of `classes` random projections, so that there is something to learn. The
    projections are drawn first: two sets of one seed and different sizes follow the same rule.
    """
    projections = torch.randn(args.features, args.classes)
    vectors = torch.randn(args.rows, args.features)
    return TensorRows(vectors, (vectors @ projections).argmax(dim=1))


class RandomSequencesArgs(RecipeArgs):
    rows: Annotated[int, Field(ge=1, le=1_000_000)]
    length: Annotated[int, Field(ge=1, le=65_536)]
    features: Width
    outputs: Width = 2


def random_sequences(args: RandomSequencesArgs) -> TensorDataset:
    """Sequences from a standard normal: (length, features), and as target (length, outputs), both float32.

    Each position of the target is one random projection of the same position of the input. So a model that treats
    positions alike (`linear`) learns it, and a batch may be split along dimension 1, the positions, as well.
    """
    projection = torch.randn(args.features, args.outputs)
    sequences = torch.randn(args.rows, args.length, args.features)
    return TensorRows(sequences, sequences @ projection)


class DigitsArgs(RecipeArgs):
    split: Literal["train", "test"] = "train"


def digits(args: DigitsArgs) -> TensorDataset:
    """The 1,797 handwritten digits that scikit-learn carries: (64,) float32 in 0..1, and a label in 0..9.

    Every fifth image of each digit is in the test split (360 rows), the others in the train split (1,437).

    Raises:
        RejectedByWorker: scikit-learn is not installed here.
    """
    table = np.loadtxt(_digits_file(), delimiter=",", dtype=np.float32)
    images, labels = table[:, :-1] / 16.0, table[:, -1].astype(np.int64)
    chosen = _in_test(labels) == (args.split == "test")
    return TensorRows(torch.from_numpy(images[chosen]), torch.from_numpy(labels[chosen]))


def _in_test(labels: np.ndarray) -> np.ndarray:
    """Marks a fifth of each label's rows, spread evenly, `TEST_ROWS` in all."""
    by_label = np.argsort(labels, kind="stable")
    marks = np.zeros(len(labels), dtype=bool)
    marks[by_label[::5]] = True
    return marks


def _digits_file() -> Path:
    """Found without importing scikit-learn, whose import would start threads and take a second."""
    found = importlib.util.find_spec("sklearn")
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz" if found and found.origin else None
    if path is None or not path.is_file():
        raise RejectedByWorker(
            "program.data.ref: 'digits' reads the file digits.csv.gz of scikit-learn, which is not installed in the "
            "worker's environment; install scikit-learn there"
        )
    return path


# -- data from files -------------------------------------------------------------------------------

FilePath = Annotated[str, Field(min_length=1, max_length=4096, description="within the operator's data directory")]


class Cifar10Args(RecipeArgs):
    path: FilePath
    split: Literal["train", "test"] = "train"


def cifar10(args: Cifar10Args, root: DataRoot, field: str) -> Dataset[Any]:
    """CIFAR-10 in its binary or its Python format: (3, 32, 32) float32 in -1..1, and a label in 0..9."""
    return cifar10_files.load_images(root, args.path, args.split, f"{field}.args.path")


ArrayName = Annotated[str, Field(min_length=1, max_length=300)]


class ArraysArgs(RecipeArgs):
    path: FilePath
    input: ArrayName = "input"
    target: Annotated[ArrayName | None, Field(description="null: rows have no target")] = "target"


def npz(args: ArraysArgs, root: DataRoot, field: str) -> TensorDataset:
    """Two arrays of a NumPy archive, row by row; real numbers become float32 and whole numbers int64.

    Raises:
        RejectedByWorker: the file is not one, lacks an array, or the arrays do not fit together.
    """
    with root.open(args.path, f"{field}.args.path") as file:
        try:
            archive = np.lib.npyio.NpzFile(file, allow_pickle=False)
            return _read_rows(args, field, list(archive), lambda name: torch.from_numpy(np.asarray(archive[name])))
        except (ValueError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
            raise RejectedByWorker(f"{field}.args.path: {args.path} is not usable as npz: {error}") from None


def safetensors(args: ArraysArgs, root: DataRoot, field: str) -> TensorDataset:
    """Two tensors of a safetensors file, row by row; real numbers become float32 and whole numbers int64.

    Raises:
        RejectedByWorker: the file is not one, lacks a tensor, or the tensors do not fit together.
    """
    with root.open(args.path, f"{field}.args.path") as file:
        try:
            with safe_open(_name_of_open(file), framework="pt") as archive:
                return _read_rows(args, field, list(archive.keys()), archive.get_tensor)
        except (SafetensorError, OSError) as error:
            raise RejectedByWorker(f"{field}.args.path: {args.path} is not usable as safetensors: {error}") from None


def _name_of_open(file: BinaryIO) -> str:
    """A path of the file that is open already, even if its original name was replaced."""
    return f"/proc/self/fd/{file.fileno()}"


def _read_rows(args: ArraysArgs, field: str, names: list[str], read: Callable[[str], torch.Tensor]) -> TensorDataset:
    tensors: list[torch.Tensor] = []
    for which, name in (("input", args.input), ("target", args.target)):
        if name is None:
            continue
        if name not in names:
            held = ", ".join(sorted(names)[:20]) or "none"
            raise RejectedByWorker(f"{field}.args.{which}: {args.path} has no array {name!r}; it has {held}")
        tensor = _as_numbers(read(name), f"{field}.args.{which}")
        if tensors and len(tensor) != len(tensors[0]):
            raise RejectedByWorker(
                f"{field}.args.{which}: {name!r} has {len(tensor)} rows, but {args.input!r} has {len(tensors[0])}"
            )
        tensors.append(tensor)
    return TensorRows(*tensors)


def _as_numbers(tensor: torch.Tensor, field: str) -> torch.Tensor:
    if tensor.dim() == 0 or tensor.is_complex() or not len(tensor):
        raise RejectedByWorker(
            f"{field}: a {tensor.dtype} of shape {tuple(tensor.shape)} is not a list of rows of numbers"
        )
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.int64)


DATA: dict[str, BuiltInPart] = {
    "random_vectors": BuiltInPart("Random vectors with labels that can be learned.", RandomVectorsArgs, random_vectors),
    "random_sequences": BuiltInPart(
        "Random sequences with a target at each position; they may be split along dimension 1.",
        RandomSequencesArgs,
        random_sequences,
    ),
    "cifar10": BuiltInPart(
        "CIFAR-10 images in a directory, in the binary or the Python format.", Cifar10Args, cifar10, reads_files=True
    ),
    "npz": BuiltInPart("Arrays of a NumPy archive (.npz).", ArraysArgs, npz, reads_files=True),
    "safetensors": BuiltInPart("Tensors of a safetensors file.", ArraysArgs, safetensors, reads_files=True),
    "digits": BuiltInPart("The 8x8 handwritten digits that come with scikit-learn.", DigitsArgs, digits),
}

#: How to know the number of rows from the arguments, for those who have no torch. That of a file only the file tells.
ROWS: dict[str, dict[str, object]] = {
    "random_vectors": {"arg": "rows"},
    "random_sequences": {"arg": "rows"},
    "digits": {"by": {"split": {"train": TRAIN_ROWS, "test": TEST_ROWS}}},
}
