"""Writes `jobs/model/catalogue.json`: the built-in names, and the JSON schema of their arguments.

    python -m workers.training.recipes.generate_catalogue            write the file
    python -m workers.training.recipes.generate_catalogue --check    exit 1 when the file is stale

The API runs without torch, so this program writes a list of what torch offers to a file.
"""

import argparse
import inspect
import json
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch.optim.lr_scheduler import LRScheduler

from jobs import model
from workers.training.recipes.data import DATA, ROWS
from workers.training.recipes.models import MODELS, BuiltInPart
from workers.training.recipes.optim import LOSSES, OPTIMIZERS, SCHEDULERS

Schema = dict[str, Any]

PATH = Path(model.__file__).with_name("catalogue.json")
DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: Arguments that have no meaning in this loop: parameters come from the model, the optimizer from the spec, nothing
#: differentiates a step, and a schedule begins at its beginning.
_LEFT_OUT = frozenset({"self", "params", "optimizer", "last_epoch", "return", "differentiable"})
#: What torch checks at run time and no signature tells.
_BOUNDS: dict[str, Schema] = {
    "lr": {"minimum": 0},
    "momentum": {"minimum": 0},
    "weight_decay": {"minimum": 0},
    "betas": {"items": {"type": "number", "minimum": 0, "exclusiveMaximum": 1}},
    "label_smoothing": {"minimum": 0, "maximum": 1},
    "reduction": {"enum": ["mean", "sum"]},
    "step_size": {"minimum": 1},
    "T_max": {"minimum": 1},
    "T_0": {"minimum": 1},
    "T_mult": {"minimum": 1},
    "total_steps": {"minimum": 1},
    "steps_per_epoch": {"minimum": 1},
    "pct_start": {"minimum": 0, "maximum": 1},
}
#: What torch imports for type checkers only.
_FOR_CHECKERS = {"Callable": Callable, "Iterable": Iterable}
_TYPES: dict[Any, str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}


def build_catalogue() -> Schema:
    """The whole catalogue, sorted by name so that the file does not change without a reason."""
    return {
        "models": {name: _of_recipe(MODELS[name]) for name in sorted(MODELS)},
        "data": {
            name: {**_of_recipe(DATA[name]), "rows": ROWS.get(name), "yields": ["input", "target"]}
            for name in sorted(DATA)
        },
        "losses": {name: {**_of_torch(LOSSES[name]), "needs": ["input", "target"]} for name in sorted(LOSSES)},
        "optimizers": {name: _of_torch(OPTIMIZERS[name]) for name in sorted(OPTIMIZERS)},
        "schedulers": {name: _of_torch(SCHEDULERS[name]) for name in sorted(SCHEDULERS)},
    }


def catalogue_text() -> str:
    return json.dumps(build_catalogue(), indent=1, sort_keys=True) + "\n"


def _of_recipe(recipe: BuiltInPart) -> Schema:
    schema = _without_titles(recipe.args.model_json_schema())
    return {"summary": recipe.summary, "args": {"$schema": DIALECT, **schema}}


def _without_titles(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: _without_titles(v) for k, v in schema.items() if not (k == "title" and isinstance(v, str))}
    return [_without_titles(part) for part in schema] if isinstance(schema, list) else schema


def _of_torch(cls: type) -> Schema:
    """Schema of a constructor, from its signature. Arguments that JSON cannot express are left out."""
    hints = get_type_hints(cls.__init__, localns=_FOR_CHECKERS)  # type: ignore[misc]
    properties: dict[str, Schema] = {}
    required = []
    for name, parameter in inspect.signature(cls).parameters.items():
        schema = _of_type(hints[name]) if name in hints and name not in _LEFT_OUT else None
        if schema is None:
            continue
        properties[name] = {**schema, **_BOUNDS.get(name, {})}
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        else:
            properties[name]["default"] = parameter.default
    args = {"$schema": DIALECT, "type": "object", "additionalProperties": False, "properties": properties}
    if required:
        args["required"] = required
    return {"summary": f"torch.{_torch_home(cls)}.{cls.__name__}", "args": args}


def _torch_home(cls: type) -> str:
    if issubclass(cls, torch.optim.Optimizer):
        return "optim"
    return "optim.lr_scheduler" if issubclass(cls, LRScheduler) else "nn"


def _of_type(hint: Any) -> Schema | None:
    """JSON schema of a type annotation; None if JSON cannot express it. A tensor is a list of numbers, unless a plain
    number is accepted too."""
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if hint is torch.Tensor:
        return {"type": "array", "items": {"type": "number"}, "minItems": 1}
    if get_origin(hint) in (list, Iterable):
        item = _of_type(get_args(hint)[0])
        return None if item is None else {"type": "array", "items": item, "minItems": 1}
    if get_origin(hint) is tuple:
        return _of_tuple(get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return _of_union(get_args(hint))
    return {"enum": list(get_args(hint))} if get_origin(hint) is Literal else None


def _of_tuple(parts: tuple[Any, ...]) -> Schema | None:
    schemas = [_of_type(part) for part in parts if part is not Ellipsis]
    if not schemas or any(schema != schemas[0] for schema in schemas):
        return {"type": "array", "prefixItems": schemas, "minItems": len(schemas), "maxItems": len(schemas)}
    bounds = {} if Ellipsis in parts else {"minItems": len(schemas), "maxItems": len(schemas)}
    return {"type": "array", "items": schemas[0], **bounds}


def _of_union(parts: tuple[Any, ...]) -> Schema | None:
    if float in parts or int in parts:
        parts = tuple(part for part in parts if part is not torch.Tensor)
    schemas = [schema for schema in map(_of_type, parts) if schema is not None]
    if len(schemas) == 1:
        return schemas[0] if schemas[0] != {"type": "null"} else None  # a function that may be left out
    types_: list[str] = [schema["type"] for schema in schemas]
    rest = {key: value for schema in schemas for key, value in schema.items() if key != "type"}
    return {"type": types_, **rest}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.training.recipes.generate_catalogue", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when the file is stale; write nothing")
    if not parser.parse_args().check:
        PATH.write_text(catalogue_text(), encoding="utf-8")
        return 0
    if PATH.is_file() and PATH.read_text(encoding="utf-8") == catalogue_text():
        return 0
    print(f"{PATH} is stale: run `python -m workers.training.recipes.generate_catalogue`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
