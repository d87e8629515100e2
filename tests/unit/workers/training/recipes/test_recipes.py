"""The built-in models and data sets."""

import importlib.util

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from workers.runtime.context import RejectedByWorker
from workers.training.recipes import data, generate_catalogue
from workers.training.recipes.data import DATA, DigitsArgs, RandomVectorsArgs
from workers.training.recipes.models import MODELS
from workers.training.recipes.optim import snake_case


def test_the_catalogue_file_is_what_torch_offers() -> None:
    assert generate_catalogue.PATH.read_text(encoding="utf-8") == generate_catalogue.catalogue_text()


@pytest.mark.parametrize(
    ("torchs", "ours"),
    [
        ("CrossEntropy", "cross_entropy"),
        ("MSE", "mse"),
        ("BCEWithLogits", "bce_with_logits"),
        ("SmoothL1", "smooth_l1"),
        ("AdamW", "adamw"),
        ("RMSprop", "rmsprop"),
        ("SGD", "sgd"),
        ("SparseAdam", "sparse_adam"),
    ],
)
def test_torchs_names_become_snake_case(torchs: str, ours: str) -> None:
    assert snake_case(torchs) == ours


def test_the_two_splits_of_the_digits_share_no_image_and_hold_all_of_them() -> None:
    train, test = (data.digits(DigitsArgs(split=split)) for split in ("train", "test"))
    assert (len(train), len(test)) == (data.TRAIN_ROWS, data.TEST_ROWS)
    counts = torch.bincount(test.tensors[1]).tolist()
    assert (min(counts), max(counts)) == (35, 37)
    image, label = train[0]
    assert image.shape == (64,)
    assert 0 <= image.min() <= image.max() <= 1
    assert label.dtype == torch.int64


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RejectedByWorker, match="install scikit-learn"):
        data.digits(DigitsArgs())


def test_random_vectors_of_one_seed_follow_one_rule_whatever_their_number() -> None:
    torch.manual_seed(3)
    projections = torch.randn(4, 3)
    for rows in (5, 50):
        torch.manual_seed(3)
        vectors, labels = data.random_vectors(RandomVectorsArgs(rows=rows, features=4, classes=3)).tensors
        assert vectors.shape == (rows, 4)
        assert torch.equal((vectors @ projections).argmax(dim=1), labels)


@pytest.mark.parametrize(
    ("name", "args", "given", "made"),
    [
        ("linear", {"in_features": 5, "out_features": 2}, (3, 5), (3, 2)),
        ("mlp", {"hidden": [8, 4], "dropout": 0.5}, (3, 64), (3, 10)),
        ("digits_cnn", {}, (3, 64), (3, 10)),
        ("digits_cnn", {}, (3, 1, 8, 8), (3, 10)),
        ("two_block", {}, (3, 10), (3, 20)),
        ("embedding_rnn", {}, (3, 7), (3, 10)),
    ],
)
def test_models_give_the_shapes_they_promise(
    name: str, args: dict[str, object], given: tuple[int, ...], made: tuple[int, ...]
) -> None:
    recipe = MODELS[name]
    assert recipe.build(recipe.args.model_validate(args))(torch.randn(given)).shape == made


def test_every_built_in_has_a_summary() -> None:
    assert all(recipe.summary.endswith(".") for recipe in (MODELS | DATA).values())


@pytest.mark.parametrize("name", ["digits", "vectors"])
def test_rows_taken_at_once_are_those_taken_one_by_one(name: str) -> None:
    rows = (
        data.digits(DigitsArgs()) if name == "digits" else data.random_vectors(RandomVectorsArgs(rows=50, features=3))
    )
    options = {"batch_size": 7, "shuffle": True}
    at_once, one_by_one = (
        list(DataLoader(each, generator=torch.Generator().manual_seed(1), **options, **more))  # type: ignore[arg-type]
        for each, more in ((rows, {"collate_fn": data.collate_rows}), (TensorDataset(*rows.tensors), {}))
    )
    assert len(at_once) == len(one_by_one) > 1
    for one, other in zip(at_once, one_by_one, strict=True):
        assert type(one) is type(other) is list
        assert all(torch.equal(x, y) and x.is_contiguous() for x, y in zip(one, other, strict=True))


def test_rows_without_a_target_make_batches_without_one() -> None:
    batches = list(DataLoader(data.TensorRows(torch.arange(6.0)), batch_size=4, collate_fn=data.collate_rows))
    assert [batch.tolist() for batch in batches] == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0]]
