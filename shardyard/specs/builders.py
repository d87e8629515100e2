"""Job specs as typed values: `Recipe` and `Script`, with completion in an editor. What is left out has the service's
defaults; `to_spec()` is what is sent.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

Strategy = Literal["single", "dp", "ddp", "fsdp"]


@dataclass(frozen=True, slots=True)
class Component:
    """A part of a recipe: a built-in name (`client.recipes()`), or `package.module:attribute`, and its arguments."""

    ref: str
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Data(Component):
    """`batch_size`: rows that one DataLoader yields."""

    batch_size: int | None = None
    shuffle: bool | None = None
    drop_last: bool | None = None
    num_workers: int | None = None
    uneven: Literal["pad", "drop", "weigh"] | None = None


@dataclass(frozen=True, slots=True)
class Scheduler(Component):
    """`every`: how often the learning rate changes."""

    every: Literal["epoch", "step"] | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    data: Data
    every_epochs: int | None = None


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A checkpoint after `every_steps` optimizer steps; the newest `keep` stay."""

    every_steps: int
    keep: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How a strategy splits, where its defaults do not fit."""

    dim: int | None = None
    output_device: int | None = None
    module: str | None = None
    functional: bool | None = None
    placement: Mapping[str, int | Literal["cpu"]] | None = None
    backend: Literal["auto", "nccl", "gloo"] | None = None
    weights: Sequence[float] | Literal["auto"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What any job has. `devices` are those of each node; `start_after`: seconds, or a time with its offset from UTC;
    `depends_on`: ids of jobs that must have succeeded; `secrets`: environment variables whose values are secrets of
    yours, by their names; `export`: tools that the metrics are written for."""

    name: str | None = None
    pool: str | None = None
    priority: int | None = None
    labels: Mapping[str, str] | None = None
    devices: int | None = None
    nodes: int | None = None
    strategy: Strategy | None = None
    start_after: float | str | None = None
    depends_on: Sequence[str] | None = None
    observe: Literal["auto", "every", "off"] | None = None
    wall_seconds: float | None = None
    stall_seconds: float | None = None
    max_retries: int | None = None
    secrets: Mapping[str, str] | None = None
    export: Sequence[Literal["tensorboard", "mlflow", "wandb"]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions(JobOptions):
    """How a recipe trains. `mode="forward"` runs the model alone, without a loss."""

    epochs: int | None = None
    max_steps: int | None = None
    seed: int | None = None
    mode: Literal["train", "forward"] | None = None
    precision: Literal["float32", "bfloat16", "float16"] | None = None
    accumulate_steps: int | None = None
    clip_grad_norm: float | None = None
    checkpoint: Checkpoints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe(TrainingOptions):
    """A job that is made of its spec alone.

        Recipe(
            model=Component("mlp", {"hidden": [512]}), data=Data("digits", batch_size=64), loss="cross_entropy",
            optimizer=Component("adamw", {"lr": 1e-3}), devices=2, strategy="ddp", epochs=3,
        )

    A name alone stands for a component without arguments. `bundle`: uploaded code that references may name.
    """

    model: Component | str
    data: Data | str
    loss: Component | str | None = None
    optimizer: Component | str | None = None
    scheduler: Scheduler | None = None
    evaluate: Evaluation | None = None
    parallelism: Parallelism | None = None
    straggler: Mapping[str, Any] | None = None
    bundle: str | None = None

    def to_spec(self) -> dict[str, Any]:
        program = {"kind": "recipe"} | _own_fields(self, JobOptions)
        parallelism = program.pop("parallelism", {})
        for part in ("model", "data", "loss", "optimizer"):
            if isinstance(program.get(part), str):
                program[part] = {"ref": program[part]}
        if self.secrets:
            program["secrets"] = dict(self.secrets)
        if self.export:
            program["export"] = list(self.export)
        spec = _job_fields(self) | {"program": program}
        if parallelism:
            spec["parallelism"] = spec.get("parallelism", {}) | parallelism
        return spec


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptJobOptions(JobOptions):
    """How a script runs, and which of its files are sent and kept."""

    env: Mapping[str, str] | None = None
    python: str | None = None
    rehearse: bool | None = None
    keep: Sequence[str] | None = None
    artifact_bytes: int | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Script(ScriptJobOptions):
    """A program of your own: a file, whose directory is sent with it, or a directory in which `entrypoint` says what
    runs. `client.submit` packs and uploads it.

        Script(path="train.py", args=["--epochs", "3"], devices=2, strategy="ddp")
    """

    path: str | os.PathLike[str]
    args: Sequence[str] = ()
    entrypoint: str | None = None

    def to_spec(self) -> dict[str, Any]:
        """The spec without what only the packed files say: `program.bundle` and `program.entrypoint`."""
        several = (self.nodes or 1) > 1
        spec = _job_fields(self)
        spec.setdefault("parallelism", {"strategy": "ddp" if several else "single"})
        named = {name: getattr(self, name) for name in ("env", "secrets", "python", "rehearse")}
        program = {"kind": "script", "args": list(self.args)} | {
            name: _plain(value) for name, value in named.items() if value
        }
        if self.export:
            program["export"] = list(self.export)
        if self.keep is not None:  # an empty list says something: nothing is kept
            program["keep"] = list(self.keep)
        if self.artifact_bytes is not None:
            spec.setdefault("limits", {})["artifact_bytes"] = self.artifact_bytes
        return spec | {"program": program}


#: Where the fields of `JobOptions` are in a spec; the others are at its top.
_PLACES = {
    "devices": "resources",
    "nodes": "resources",
    "strategy": "parallelism",
    "wall_seconds": "limits",
    "stall_seconds": "limits",
    "max_retries": "limits",
}


def _job_fields(options: JobOptions) -> dict[str, Any]:
    spec: dict[str, Any] = {}
    for one in fields(JobOptions):
        value = getattr(options, one.name)
        if value is None or one.name in ("secrets", "export"):  # which belong to the program
            continue
        place = spec.setdefault(_PLACES[one.name], {}) if one.name in _PLACES else spec
        place[one.name] = _plain(value)
    return spec


def _own_fields(value: Any, base: type | None = None) -> dict[str, Any]:
    """The fields of a dataclass that are set, without those of a base class."""
    left_out = {one.name for one in fields(base)} if base is not None else set()
    found = {one.name: getattr(value, one.name) for one in fields(value) if one.name not in left_out}
    return {name: _plain(each) for name, each in found.items() if each is not None}


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if is_dataclass(value):
        return _own_fields(value)
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(each) for each in value]
    return value
