"""The built-in models, data sets, losses, optimizers and schedulers, as `catalogue.json` lists them. No torch here.

`package.module:attribute` references are not looked at: only the worker can import them.
"""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.model.error_words import explain_argument, nearest_choice
from jobs.model.spec import ComponentSpec, JobSpec, RecipeProgram
from shardyard.contract.errors import FieldError

if TYPE_CHECKING:
    import jsonschema_rs

Catalogue = dict[str, dict[str, dict[str, Any]]]

#: What one thing in each group is called in messages.
_NOUNS = {
    "models": "model",
    "data": "data set",
    "losses": "loss",
    "optimizers": "optimizer",
    "schedulers": "learning rate scheduler",
}


@functools.cache
def load() -> Catalogue:
    """`models`, `data`, `losses`, `optimizers` and `schedulers`, each by name: what `GET /v1/recipes` answers."""
    loaded: Catalogue = json.loads(Path(__file__).with_name("catalogue.json").read_text(encoding="utf-8"))
    return loaded


def check(spec: JobSpec) -> list[FieldError]:
    """Every built-in name and argument of `spec` that is wrong, with the field to change."""
    if not isinstance(spec.program, RecipeProgram):
        return []
    known = load()
    program = spec.program
    wrong: list[FieldError] = []
    for field, group, component in (
        ("program.model", "models", program.model),
        ("program.data", "data", program.data),
        ("program.loss", "losses", program.loss),
        ("program.optimizer", "optimizers", program.optimizer),
        ("program.scheduler", "schedulers", program.scheduler),
        ("program.evaluate.data", "data", program.evaluate.data if program.evaluate else None),
    ):
        if component is not None and is_built_in(component):
            wrong += _component_errors(field, group, component, known)
    wrong += _missing_targets(spec, known)
    return wrong


def rows_of(spec: JobSpec) -> tuple[int | None, int | None]:
    """Rows of the training data and of the evaluation data; None where only the worker can know."""
    if not isinstance(spec.program, RecipeProgram):
        return None, None
    evaluate = spec.program.evaluate
    return dataset_rows(spec.program.data), None if evaluate is None else dataset_rows(evaluate.data)


def learning_rate(spec: JobSpec) -> float | None:
    """The learning rate that the optimizer of a recipe begins with; None where it is not in the spec."""
    optimizer = spec.program.optimizer if isinstance(spec.program, RecipeProgram) else None
    if optimizer is None:
        return None
    known = load()["optimizers"].get(optimizer.ref, {}).get("args", {}).get("properties", {})
    rate = optimizer.args.get("lr", known.get("lr", {}).get("default"))
    return float(rate) if isinstance(rate, (int, float)) else None


def dataset_rows(component: ComponentSpec) -> int | None:
    """Rows of a built-in data set; None where only the worker can know."""
    entry = load()["data"].get(component.ref)
    if entry is None:
        return None
    rule = entry["rows"]
    if rule is None:
        return None
    if "arg" in rule:
        rows = component.args.get(rule["arg"])
        return rows if isinstance(rows, int) and not isinstance(rows, bool) else None
    ((arg, by_value),) = rule["by"].items()
    value = component.args.get(arg, entry["args"]["properties"][arg].get("default"))
    return by_value.get(value) if isinstance(value, str) else None


def is_built_in(component: ComponentSpec) -> bool:
    return ":" not in component.ref


def _component_errors(field: str, group: str, component: ComponentSpec, known: Catalogue) -> Iterator[FieldError]:
    entry = known[group].get(component.ref)
    if entry is None:
        hint = _did_you_mean(component.ref, list(known[group]), "known")
        yield FieldError(f"{field}.ref", f"unknown {_NOUNS[group]} {component.ref!r}; {hint}")
        return
    if known is load() and _is_accepted(group, component):
        return
    properties = entry["args"].get("properties", {})
    for name, value in component.args.items():
        if name in properties:
            yield from _value_errors(f"{field}.args.{name}", properties[name], value)
        else:
            hint = _did_you_mean(name, list(properties), "it takes")
            yield FieldError(f"{field}.args.{name}", f"{component.ref!r} takes no argument {name!r}; {hint}")
    for name in entry["args"].get("required", ()):
        if name not in component.args:
            yield FieldError(f"{field}.args.{name}", f"required by {component.ref!r}, but missing")


def _is_accepted(group: str, component: ComponentSpec) -> bool:
    """Whether all arguments are as their schema says: one look in place of one for each of them."""
    try:
        return _of_arguments(group, component.ref).is_valid(component.args)
    except ValueError:
        return False


@functools.cache
def _of_arguments(group: str, ref: str) -> "jsonschema_rs.Validator":
    return _validator(load()[group][ref]["args"])


def _validator(schema: dict[str, Any]) -> "jsonschema_rs.Validator":
    import jsonschema_rs  # imported where it is needed: nodes read the catalogue too, and check nothing

    return jsonschema_rs.validator_for(schema)


def _value_errors(field: str, schema: dict[str, Any], value: Any) -> Iterator[FieldError]:
    try:
        for error in _validator(schema).iter_errors(value):
            path = "".join(f".{part}" for part in error.instance_path)
            yield FieldError(field + path, explain_argument(error.kind.name, error.kind.as_dict(), error.instance))
    except ValueError:  # it is nested too deep, or has text that is none
        yield FieldError(field, "cannot be read: it is nested too deep, or has half a surrogate pair in it")


def _did_you_mean(given: str, known: list[str], otherwise: str) -> str:
    near = nearest_choice(given, known)
    return f"did you mean {near!r}?" if near else f"{otherwise}: {', '.join(sorted(known)) or 'none'}"


def _missing_targets(spec: JobSpec, known: Catalogue) -> Iterator[FieldError]:
    """A loss that needs a target, with data that has none."""
    program = spec.recipe
    needs = known["losses"].get(program.loss.ref, {}).get("needs", ()) if program.loss is not None else ()
    if "target" not in needs or program.loss is None:
        return
    evaluated = program.evaluate.data if program.evaluate else None
    for field, data in (("program.data", program.data), ("program.evaluate.data", evaluated)):
        entry = known["data"].get(data.ref) if data is not None else None
        if data is None or entry is None:
            continue
        if "target" not in entry["yields"]:
            message = f"{data.ref!r} yields no target, which loss {program.loss.ref!r} needs; use data with labels"
            yield FieldError(f"{field}.ref", message)
        elif "target" in entry["args"]["properties"] and data.args.get("target", "") is None:
            message = f"null, but loss {program.loss.ref!r} needs a target; name the array that holds it"
            yield FieldError(f"{field}.args.target", message)
