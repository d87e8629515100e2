"""A rank that has no row of a batch."""

import pytest
import torch
from torch import nn

from workers.training.batch_shares import empty_loss, without_statistics
from workers.training.recipes.models import MODELS


def test_no_rows_leave_batchnorm_as_it_is_and_have_a_gradient_of_zero() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, 2))
    model(torch.randn(4, 1, 6, 6))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with without_statistics(model):
        loss = empty_loss({"scores": model(torch.empty(0, 1, 6, 6))})
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in model.parameters())
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("name", "args", "row"),
    [
        ("linear", {"in_features": 5, "out_features": 2}, torch.empty(0, 5)),
        ("mlp", {}, torch.empty(0, 64)),
        ("digits_cnn", {}, torch.empty(0, 64)),
        ("cifar10_cnn", {}, torch.empty(0, 3, 32, 32)),
    ],
)
def test_built_in_models_take_a_batch_without_rows(name: str, args: dict[str, int], row: torch.Tensor) -> None:
    recipe = MODELS[name]
    model = recipe.build(recipe.args.model_validate(args))
    empty_loss(model(row)).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in model.parameters())
