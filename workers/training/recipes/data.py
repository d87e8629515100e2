"""The built-in data sets. All yield (input, target)."""

import importlib.util
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch.utils.data import TensorDataset

from workers.training.context import RejectedByWorker
from workers.training.recipes.models import Args, Recipe, Width

TEST_ROWS = 360
TRAIN_ROWS = 1437


class RandomVectorsArgs(Args):
    rows: Annotated[int, Field(ge=1, le=10_000_000)]
    features: Width
    classes: Annotated[int, Field(ge=1, le=65_536)] = 2


def random_vectors(args: RandomVectorsArgs) -> TensorDataset:
    """Vectors from a standard normal: (features,) float32 and a label in [0, classes).

    The label is the largest of `classes` random projections, so that there is something to learn. The
    projections are drawn first: two sets of one seed and different sizes follow the same rule.
    """
    projections = torch.randn(args.features, args.classes)
    vectors = torch.randn(args.rows, args.features)
    return TensorDataset(vectors, (vectors @ projections).argmax(dim=1))


class DigitsArgs(Args):
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
    return TensorDataset(torch.from_numpy(images[chosen]), torch.from_numpy(labels[chosen]))


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


DATA: dict[str, Recipe] = {
    "random_vectors": Recipe("Random vectors with labels that can be learned.", RandomVectorsArgs, random_vectors),
    "digits": Recipe("The 8x8 handwritten digits that come with scikit-learn.", DigitsArgs, digits),
}

#: How to know the number of rows from the arguments, for those who have no torch.
ROWS: dict[str, dict[str, object]] = {
    "random_vectors": {"arg": "rows"},
    "digits": {"by": {"split": {"train": TRAIN_ROWS, "test": TEST_ROWS}}},
}
