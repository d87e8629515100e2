"""Pydantic's errors in this project's words: the field's path, what is wrong, what would be right."""

import difflib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ValidationError

from shardyard.contract.errors import FieldError, MalformedJson
from shardyard.contract.plain_text import describe_unsafe, escape_unsafe, find_unsafe

MAX_REPORTED_ERRORS = 20
#: Longest part of a request that an error repeats.
MAX_ECHOED = 80

#: One of pydantic's errors.
Detail = Mapping[str, Any]
#: By a field and the tag that pydantic puts behind it in paths: the model that was chosen there, of several.
Tags = Mapping[tuple[int | str, int | str], type[BaseModel]]
#: Errors that have our own words already.
_OWN_WORDS = frozenset({"program_kind"})


def require_plain(text: str) -> str:
    """The text itself, a name or a reason that people are shown.

    Raises:
        ValueError: it has a character that a screen obeys instead of showing it.
    """
    unsafe = find_unsafe(text)
    if unsafe is not None:
        raise ValueError(describe_unsafe(unsafe))
    return text


def details(error: ValidationError) -> Sequence[Detail]:
    """What pydantic found wrong with a body.

    Raises:
        MalformedJson: it is no JSON, or is nested too deep.
    """
    found: Sequence[Any] = error.errors(include_url=False)
    if found[0]["type"] == "json_invalid":
        raise MalformedJson(f"the body is not valid JSON: {found[0]['ctx']['error']}") from None
    return found


def field_errors(
    found: Sequence[Detail], model: type[BaseModel] | None = None, tags: Tags | None = None
) -> tuple[FieldError, ...]:
    """The first twenty. `model` is the one that was read, from which misspelt fields are told the right name."""
    return tuple(
        FieldError(_path(detail["loc"], tags or {}), _explain(detail, model, tags or {}))
        for detail in found[:MAX_REPORTED_ERRORS]
    )


def _path(loc: Sequence[int | str], tags: Tags) -> str:
    """The dotted path of a field; pydantic's own marks (a key, a tag) are none of the user's."""
    parts = [part for before, part in pairwise(["", *loc]) if part != "[key]" and (before, part) not in tags]
    return ".".join(escape_unsafe(_short(str(part))) for part in parts) or "(body)"


def _explain(detail: Detail, model: type[BaseModel] | None, tags: Tags) -> str:
    if detail["type"] == "missing":
        return "required, but missing"
    if detail["type"] == "value_error":  # raised by a validator of ours, in our own words
        return f"{detail['ctx']['error']} (got {_short(repr(detail['input']))})"
    if detail["type"] in _OWN_WORDS:
        return str(detail["msg"])
    unsafe = find_unsafe(detail["input"]) if isinstance(detail.get("input"), str) else None
    if detail["type"] == "string_pattern_mismatch" and unsafe is not None:
        return f"{describe_unsafe(unsafe)} (got {_short(repr(detail['input']))})"
    if detail["type"] != "extra_forbidden" or model is None:
        return f"{detail['msg']} (got {_short(repr(detail.get('input')))})"
    known = _fields_at([part for part in detail["loc"][:-1] if isinstance(part, str)], model, tags)
    near = difflib.get_close_matches(_short(str(detail["loc"][-1])), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known fields here: {', '.join(known) or 'none'}"
    return f"unknown field; {hint}"


def _fields_at(path: Sequence[str], model: type[BaseModel], tags: Tags) -> list[str]:
    """Names of the fields of the model that `path` leads to from `model`."""
    for before, part in pairwise(["", *path]):
        kind = model.model_fields[part].annotation if part in model.model_fields else None
        models = (one for one in (kind, *getattr(kind, "__args__", ())) if isinstance(one, type))
        model = tags.get((before, part)) or next((one for one in models if issubclass(one, BaseModel)), model)
    return list(model.model_fields)


def _short(text: str) -> str:
    return text if len(text) <= MAX_ECHOED else text[:MAX_ECHOED] + "..."
