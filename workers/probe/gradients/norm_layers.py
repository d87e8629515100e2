"""Finds the BatchNorm layers of a model that take their statistics from each device alone. torch is looked up when
needed, and not imported before."""

import sys
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from jobs.protocol.probe_records import NormLayers

if TYPE_CHECKING:
    from torch import nn


def unsynchronised_norms(model: "nn.Module") -> "list[nn.Module]":
    """BatchNorm layers that are trained, and whose statistics no other device shares."""
    home: Any = sys.modules["torch.nn.modules.batchnorm"]
    return [
        module
        for module in model.modules()
        if isinstance(module, home._BatchNorm) and not isinstance(module, home.SyncBatchNorm) and module.training
    ]


def describe_norms(model: "nn.Module", path: str) -> NormLayers | None:
    """None for a model without such layers."""
    found = unsynchronised_norms(model)
    return NormLayers(path, type(model).__name__, len(found)) if found else None


class NormWatcher:
    """Reports how many values of each row, in a channel, the layers of a model take their statistics from: the smallest
    number of any layer, from its first call in training."""

    def __init__(self, model: "nn.Module", emit: Callable[[NormLayers], None]) -> None:
        self._emit = emit
        self._inside = type(model).__name__
        self._smallest: int | None = None
        layers = unsynchronised_norms(model)
        self._layers = len(layers)
        for layer in layers:
            self._watch_first_call(layer)
        if layers:
            self._send()

    def _watch_first_call(self, layer: "nn.Module") -> None:
        def look(_: "nn.Module", inputs: Any) -> None:
            handle.remove()
            values = prod(inputs[0].shape[2:])
            if self._smallest is None or values < self._smallest:
                self._smallest = values
                self._send()

        handle = layer.register_forward_pre_hook(look)

    def _send(self) -> None:
        self._emit(NormLayers("", self._inside, self._layers, self._smallest))
