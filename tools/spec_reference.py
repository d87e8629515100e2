"""`python -m tools.spec_reference`: writes `docs/spec.md`, the reference of the job spec, from the models themselves.

Types, defaults and bounds come from the JSON schema of `JobSpec` and from the catalogue of recipes, and so do the
descriptions that are there. Added by hand below: descriptions of fields that the models do not describe, and one
example for each group.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobs.model import catalogue
from jobs.model.spec import JobSpec
from jobs.model.spec_schema import SpecSchemaGenerator

PATH = Path(__file__).parents[1] / "docs" / "spec.md"

Schema = dict[str, Any]

#: Path of each group, model that describes it, what it is, and an example of it.
GROUPS: tuple[tuple[str, str, str, Schema], ...] = (
    (
        "",
        "JobSpec",
        "Only `program` is required.",
        {
            "name": "digits-dp3",
            "labels": {"team": "vision"},
            "priority": 10,
            "resources": {"devices": 3},
            "parallelism": {"strategy": "dp"},
            "program": {
                "model": {"ref": "digits_cnn"},
                "data": {"ref": "digits", "batch_size": 63, "shuffle": True},
                "loss": {"ref": "cross_entropy"},
                "optimizer": {"ref": "sgd", "args": {"lr": 0.05, "momentum": 0.9}},
                "epochs": 6,
            },
        },
    ),
    ("resources", "Resources", "The devices that the job needs before it starts.", {"devices": 4}),
    (
        "parallelism",
        "Parallelism",
        "How the model is placed on the devices. A field that names strategies is refused under the others.",
        {"strategy": "dp", "output_device": 1, "dim": 0},
    ),
    (
        "program",
        "RecipeProgram",
        (
            "The model, the data, and how long to train. `loss` and `optimizer` are required in the mode `train`, and "
            "refused in the mode `forward`. [A script](#program-a-script) has other fields."
        ),
        {
            "model": {"ref": "mlp", "args": {"hidden": [512, 512]}},
            "data": {"ref": "digits", "batch_size": 8, "shuffle": True},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "adamw", "args": {"lr": 0.003}},
            "scheduler": {"ref": "cosine_annealing_lr", "args": {"T_max": 4}, "every": "epoch"},
            "accumulate_steps": 4,
            "clip_grad_norm": 1.0,
            "precision": "bfloat16",
            "epochs": 4,
            "seed": 7,
        },
    ),
    (
        "program.*",
        "Component",
        "`model`, `loss` and `optimizer` have these fields. [The catalogue](#built-in-recipes) has the built-in names.",
        {"model": {"ref": "linear", "args": {"in_features": 5, "out_features": 2}}},
    ),
    (
        "program.data",
        "Data",
        "The training data, and how it is batched.",
        {"ref": "random_vectors", "args": {"rows": 100, "features": 5}, "batch_size": 30, "shuffle": True},
    ),
    (
        "program.scheduler",
        "Scheduler",
        "A learning rate scheduler of PyTorch.",
        {"ref": "step_lr", "args": {"step_size": 100, "gamma": 0.5}, "every": "step"},
    ),
    (
        "program.evaluate",
        "Evaluation",
        "Computes loss and accuracy on other data, after every `every_epochs` epochs.",
        {"data": {"ref": "digits", "args": {"split": "test"}, "batch_size": 120}, "every_epochs": 2},
    ),
    (
        "program.evaluate.data",
        "EvaluationData",
        "The data of the evaluation. It is never shuffled.",
        {"ref": "digits", "args": {"split": "test"}, "batch_size": 120},
    ),
    (
        "program.checkpoint",
        "CheckpointPolicy",
        "Saves the run every `every_steps` steps, at its end and when it is stopped; a new attempt resumes from there.",
        {"every_steps": 200, "keep": 2},
    ),
    (
        "program.straggler",
        "Straggler",
        "Makes one device slow on purpose, to see how the report shows it.",
        {"rank": 1, "where": "input", "milliseconds": 50},
    ),
    (
        "program",
        "ScriptProgram",
        (
            "Your own program, unchanged: [scripts.md](scripts.md) explains how it runs. When you submit the job, the "
            "bundle must have been uploaded, and contain the entry point. Of `parallelism`, only `strategy` and "
            "`weights` may be set: ddp and fsdp start one process for each device, single and dp one process."
        ),
        {
            "kind": "script",
            "bundle": "sha256:" + "0123456789abcdef" * 4,
            "entrypoint": "src/train.py",
            "args": ["--epochs", "3", "--local_rank={local_rank}"],
            "env": {"TOKENIZERS_PARALLELISM": "false"},
        },
    ),
    (
        "limits",
        "Limits",
        "How long a job may run, and how often it is retried.",
        {"wall_seconds": 3600, "max_retries": 1},
    ),
)

#: Descriptions of the fields that have none in the models: (model, field).
WORDS: dict[tuple[str, str], str] = {
    ("JobSpec", "name"): "a [name](api.md#names) for people; by default made from model and strategy",
    ("JobSpec", "pool"): "the pool whose devices to use (`GET /v1/pools` lists pools)",
    ("JobSpec", "labels"): "text by key, for filters",
    ("JobSpec", "resources"): "see [`resources`](#resources)",
    ("JobSpec", "parallelism"): "see [`parallelism`](#parallelism)",
    ("JobSpec", "program"): "a recipe, see [`program`](#program), or [a script](#program-a-script)",
    ("JobSpec", "observe"): (
        'when the lines "In Model: input size ..." are written to the stream `shard` of the logs: `auto` is every step '
        "up to the 1,000th and then when the split changes; the report does not depend on it"
    ),
    ("JobSpec", "limits"): "see [`limits`](#limits)",
    ("Parallelism", "strategy"): "`nn.DataParallel` is dp, `DistributedDataParallel` ddp, `fully_shard` fsdp",
    ("RecipeProgram", "kind"): "may be left out",
    ("ScriptProgram", "kind"): "marks the program as a script",
    (
        "ScriptProgram",
        "env",
    ): "environment variables; those that describe a rank, or the source of its libraries, are refused",
    ("RecipeProgram", "model"): "the model",
    ("RecipeProgram", "data"): "the training data, see [`program.data`](#programdata)",
    ("RecipeProgram", "loss"): "called as loss(output, target)",
    ("RecipeProgram", "optimizer"): "an optimizer whose step needs no closure",
    ("RecipeProgram", "epochs"): "passes over the data",
    (
        "RecipeProgram",
        "max_steps",
    ): "the most optimizer steps; ends the run if it comes before the end of the last epoch",
    ("RecipeProgram", "seed"): "seed of data, model and shuffling",
    ("RecipeProgram", "mode"): "`forward` only calls the model on every batch",
    ("RecipeProgram", "evaluate"): "see [`program.evaluate`](#programevaluate)",
    ("Component", "args"): "arguments by name; they depend on `ref`",
    ("Data", "args"): "arguments by name; they depend on `ref`",
    ("Data", "shuffle"): "another order in every epoch",
    (
        "Data",
        "drop_last",
    ): "leave out the last batch if it is not full; under ddp and fsdp also rows that ranks cannot share evenly",
    ("Data", "num_workers"): "processes that load data, in each rank",
    ("EvaluationData", "args"): "arguments by name; they depend on `ref`",
    ("EvaluationData", "batch_size"): "rows that one DataLoader yields",
    ("EvaluationData", "num_workers"): "processes that load data, in each rank",
    ("Evaluation", "data"): "see [`program.evaluate.data`](#programevaluatedata)",
    (
        "Evaluation",
        "every_epochs",
    ): "epochs from one evaluation to the next; 2 evaluates after the second epoch, the fourth, and so on",
    ("Scheduler", "args"): "arguments by name; they depend on `ref`",
    ("Straggler", "where"): "the part of a step in which it sleeps; `input` is while it waits for data",
}

#: Keys of a JSON schema that bound a value, and how they read.
BOUNDS: tuple[tuple[str, str], ...] = (
    ("minimum", "at least {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "at most {}"),
    ("exclusiveMaximum", "below {}"),
    ("minLength", "{} or more characters"),
    ("maxLength", "at most {} characters"),
    ("pattern", "matches `{}`"),
    ("minItems", "{} or more values"),
    ("maxItems", "at most {} values"),
    ("maxProperties", "at most {} entries"),
)

INTRODUCTION = """\
# The job spec

This page describes the job spec field by field, as `POST /v1/jobs`, `POST /v1/plan`, `shardyard submit` and
`shardyard plan` accept it. `python -m tools.spec_reference` generates it from the models that check a spec.
[programs.md](programs.md) shows whole specs, and `GET /v1/recipes` returns the catalogue below as JSON schemas.

Unknown fields are refused, numbers are not read from text, and an error names the field and how to correct it.
Devices are logical: indexes into the lease, from 0.
"""

BATCHES = """\
## What a batch is

`program.data.batch_size` is what one `DataLoader` yields: the whole batch under single and dp, each rank's own under
ddp and fsdp. `global_batch_size`, in the status and in a plan, is what one optimizer step sees: the batch size times
the ranks times `program.accumulate_steps`.
"""

FILES = """\
Data from files (`cifar10`, `npz`, `safetensors`) is read below one directory, which the operator names in
`SHARDYARD_DATA_ROOT` on every node; `path` is relative to it. Paths that lead outside, by `..` or by a symbolic link,
are refused; without that setting every such data set is refused. Only the worker can see the files: a job whose file
does not exist fails with `rejected_by_worker` when it starts, and the message names the field.

```json
{"ref": "npz", "args": {"path": "rows.npz", "input": "x", "target": "y"}, "batch_size": 64}
```
"""


def text() -> str:
    """The whole page."""
    schema = JobSpec.model_json_schema(schema_generator=SpecSchemaGenerator)
    models = {**schema["$defs"], "JobSpec": schema}
    parts = [INTRODUCTION, *(_group(*group, models) for group in GROUPS), BATCHES, *_recipes(catalogue.load())]
    return "\n".join(parts)


_HEADINGS = {"JobSpec": "The whole", "Component": "References", "ScriptProgram": "`program`: a script"}


def _group(path: str, model: str, words: str, example: Schema, models: dict[str, Schema]) -> str:
    heading = _HEADINGS.get(model, f"`{path}`")
    shown = _json(example)
    rows = "\n".join(_rows(models[model], models, model))
    return f"## {heading}\n\n{words}\n\n{_HEAD}\n{rows}\n\n```json\n{shown}\n```\n"


def _json(example: Schema) -> str:
    """On one line if it fits, else one line for each field, so that the parts of a spec stay readable."""
    if len(line := json.dumps(example)) <= 110:
        return line
    fields = ",\n".join(f'  "{name}": {_indented(value)}' for name, value in example.items())
    return f"{{\n{fields}\n}}"


def _indented(value: Any) -> str:
    return _json(value).replace("\n", "\n  ") if isinstance(value, dict) else json.dumps(value)


_HEAD = "| field | type | default | bounds | what it does |\n|---|---|---|---|---|"


def _rows(schema: Schema, models: dict[str, Schema], model: str = "") -> Iterator[str]:
    """Lines of a table: one for each property of an object's schema."""
    required = schema.get("required", ())
    for name, value in schema.get("properties", {}).items():
        words = value.get("description") or WORDS.get((model, name), "")
        default = "required" if name in required else _default(value)
        cells = (f"`{name}`", _type(value, models), default, _bounds(value), words)
        yield "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


def _alternatives(value: Schema) -> list[Schema]:
    found: list[Schema] = value.get("anyOf") or value.get("oneOf") or [value]
    return found


def _type(value: Schema, models: dict[str, Schema]) -> str:
    return " or ".join(dict.fromkeys(kind for each in _alternatives(value) for kind in _kinds(each, models)))


def _kinds(value: Schema, models: dict[str, Schema]) -> Iterator[str]:
    if "$ref" in value:
        yield "object"
    elif "const" in value or "enum" in value:
        yield from (f"`{one}`" for one in value.get("enum", [value.get("const")]))
    elif "patternProperties" in value:
        (held,) = value["patternProperties"].values()
        yield f"object of {_type(held, models)}"
    elif value.get("type") == "array":
        held = value.get("items") or value["prefixItems"][0]
        yield f"list of {_type(held, models)}"
    else:
        kinds = value.get("type", "any")
        yield from kinds if isinstance(kinds, list) else [kinds]


def _default(value: Schema) -> str:
    default = value.get("default")
    if isinstance(default, dict) or (default is None and value.get("type") == "object"):
        return "its own defaults" if default else "empty"
    return "none" if default is None else f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _bounds(value: Schema) -> str:
    found: list[str] = []
    for part in _alternatives(value):
        pairs = part.get("patternProperties", {})
        found += [words.format(_number(part[key])) for key, words in BOUNDS if key in part]
        found += [f"key matches `{pattern}`" for pattern in pairs]
    return "; ".join(dict.fromkeys(found))


def _number(value: Any) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return f"{int(value) if whole else value:,}" if isinstance(value, int | float) else str(value)


# -- the catalogue ---------------------------------------------------------------------------------


def _recipes(known: catalogue.Catalogue) -> Iterator[str]:
    yield "## Built-in recipes\n"
    for group, noun in (("models", "Models"), ("data", "Data sets")):
        yield f"### {noun}\n"
        for name, entry in known[group].items():
            yield f"**`{name}`**: {entry['summary']}{_row_count(entry)}\n"
            yield f"{_HEAD}\n" + "\n".join(_rows(entry["args"], {})) + "\n"
    yield FILES
    for group, noun in (("losses", "Losses"), ("optimizers", "Optimizers"), ("schedulers", "Schedulers")):
        yield f"### {noun}\n"
        yield "PyTorch's own, with its own arguments and defaults. Others are named as `package.module:attribute`.\n"
        yield _listing(known[group])


def _row_count(entry: Schema) -> str:
    if "rows" not in entry or entry["rows"] is not None:
        return ""
    return " How many rows there are is known only when the job starts, so a plan shows one batch."


def _listing(entries: dict[str, Schema]) -> str:
    lines = ["| name | is | takes |", "|---|---|---|"]
    for name, entry in entries.items():
        takes = ", ".join(f"`{argument}`" for argument in entry["args"].get("properties", {}))
        lines.append(f"| `{name}` | `{entry['summary']}` | {takes} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
