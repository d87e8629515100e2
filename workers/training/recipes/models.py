"""The built-in models. The arguments of each are a pydantic model, from which the catalogue is generated."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import nn

Width = Annotated[int, Field(ge=1, le=65_536)]
Fraction = Annotated[float, Field(ge=0, lt=1)]


class RecipeArgs(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class BuiltInPart:
    """A built-in: what it is in one line, the arguments it takes, and the function that makes it.

    One that `reads_files` is given the operator's data directory and the spec's field beside its arguments.
    """

    summary: str
    args: type[RecipeArgs]
    build: Callable[..., Any]
    reads_files: bool = False


class LinearArgs(RecipeArgs):
    in_features: Width
    out_features: Width
    bias: bool = True


def linear(args: LinearArgs) -> nn.Module:
    """(..., in_features) -> (..., out_features)"""
    return nn.Linear(args.in_features, args.out_features, bias=args.bias)


class MlpArgs(RecipeArgs):
    in_features: Width = 64
    hidden: Annotated[list[Width], Field(max_length=64)] = [128]
    out_features: Width = 10
    dropout: Fraction = 0.0


def mlp(args: MlpArgs) -> nn.Module:
    """(N, ...) with in_features values a row -> (N, out_features)"""
    layers: list[nn.Module] = [nn.Flatten()]
    width = args.in_features
    for hidden in args.hidden:
        layers += [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(args.dropout)]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, args.out_features))


class DigitsCnnArgs(RecipeArgs):
    channels: Annotated[int, Field(ge=1, le=1024)] = 16
    dropout: Fraction = 0.0


class DigitsCnn(nn.Module):
    """Two convolutions and a linear head for 8x8 images: (N, 64) or (N, 1, 8, 8) -> (N, 10)."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(2 * channels * 16, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images.reshape(-1, 1, 8, 8)))
        return logits


def digits_cnn(args: DigitsCnnArgs) -> nn.Module:
    return DigitsCnn(args.channels, args.dropout)


class Cifar10CnnArgs(RecipeArgs):
    classes: Width = 10


class Cifar10Cnn(nn.Module):
    """Two convolutions with pooling and three linear layers: (N, 3, 32, 32) -> (N, classes)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.features(images))
        return logits


def cifar10_cnn(args: Cifar10CnnArgs) -> nn.Module:
    return Cifar10Cnn(args.classes)


class BlocksArgs(RecipeArgs):
    in_features: Width = 10
    hidden: Width = 20
    out_features: Width = 20


class Blocks(nn.Module):
    """Three linear blocks, of which the middle one, `block2`, is there to be wrapped on its own."""

    def __init__(self, in_features: int, hidden: int, out_features: int) -> None:
        super().__init__()
        self.block1 = nn.Linear(in_features, hidden)
        self.block2 = nn.Linear(hidden, hidden)
        self.block3 = nn.Linear(hidden, out_features)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.block3(self.block2(self.block1(rows)))
        return out


def two_block(args: BlocksArgs) -> nn.Module:
    return Blocks(args.in_features, args.hidden, args.out_features)


class EmbeddingRnnArgs(RecipeArgs):
    words: Width = 1000
    width: Width = 10
    out_features: Width = 10


class EmbeddingRnn(nn.Module):
    """An embedding and a recurrent layer, which may live on two devices: (N, T) word numbers -> (N, out_features).

    Real-valued input is cut to whole numbers and taken modulo `words`, so that any data set of vectors will do.
    """

    def __init__(self, words: int, width: int, out_features: int) -> None:
        super().__init__()
        self.words = words
        self.embedding = nn.Embedding(words, width)
        self.rnn = nn.RNN(width, out_features, batch_first=True)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        outputs, _ = self.rnn(self.embedding(words.long().remainder(self.words)))
        last: torch.Tensor = outputs[:, -1]
        return last


def embedding_rnn(args: EmbeddingRnnArgs) -> nn.Module:
    return EmbeddingRnn(args.words, args.width, args.out_features)


MODELS: dict[str, BuiltInPart] = {
    "linear": BuiltInPart("One linear layer.", LinearArgs, linear),
    "mlp": BuiltInPart("Linear layers with ReLU and dropout; flattens its input.", MlpArgs, mlp),
    "digits_cnn": BuiltInPart("Two convolutions and a linear head for 8x8 images.", DigitsCnnArgs, digits_cnn),
    "cifar10_cnn": BuiltInPart(
        "Two convolutions and three linear layers for 32x32 colour images.", Cifar10CnnArgs, cifar10_cnn
    ),
    "two_block": BuiltInPart(
        "Linear blocks of which `block2` may be wrapped alone (parallelism.module).", BlocksArgs, two_block
    ),
    "embedding_rnn": BuiltInPart(
        "`embedding` and `rnn`, for parallelism.placement on two devices.", EmbeddingRnnArgs, embedding_rnn
    ),
}
