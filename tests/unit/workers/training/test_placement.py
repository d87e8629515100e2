"""Parts of a model on several devices."""

import pytest
import torch
from torch import nn

from workers.training.placement import complete_placement, move_tensors, place_parts


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.body(self.embedding(words))
        return outputs


def test_without_a_placement_the_whole_model_is_one_part() -> None:
    assert complete_placement(Net(), {}) == {"": 0}


def test_what_is_not_named_goes_to_device_0_in_large_parts() -> None:
    assert complete_placement(Net(), {"embedding": "cpu"}) == {"embedding": "cpu", "body": 0}
    assert complete_placement(Net(), {"body.1": 1}) == {"embedding": 0, "body.0": 0, "body.1": 1}


@pytest.mark.parametrize(
    ("placement", "message"),
    [({"head": 0}, "head: no such sub-module; the model has embedding"), ({"body": 0, "body.1": 1}, "lies inside")],
)
def test_paths_that_cannot_be_placed_are_refused(placement: dict[str, int], message: str) -> None:
    with pytest.raises(KeyError, match=message):
        complete_placement(Net(), dict(placement))


def test_inputs_follow_the_part_they_are_passed_to() -> None:
    net, here, there = Net(), torch.device("cpu"), torch.device("meta")
    place_parts(net, {"embedding": "cpu", "body": 0}, {"cpu": here, 0: there})
    assert net.embedding.weight.device == here
    assert net(torch.zeros(3, dtype=torch.long)).device == there


def test_every_tensor_of_a_nested_value_is_moved() -> None:
    value = {"a": [torch.ones(1)], "b": (torch.ones(2), "text")}
    result = move_tensors(value, torch.device("meta"))
    assert result["a"][0].device.type == result["b"][0].device.type == "meta"
    assert result["b"][1] == "text"
