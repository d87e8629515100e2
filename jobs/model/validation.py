"""Pydantic's errors in this project's words: the field's path, what is wrong, what would be right."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import jiter
from pydantic import BaseModel, ValidationError

from jobs.model.error_words import explain_value, nearest_choice, shorten, show_name
from shardyard.contract.errors import FieldError, MalformedJson
from shardyard.contract.plain_text import describe_unsafe, find_unsafe

MAX_REPORTED_ERRORS = 20

#: One of pydantic's errors.
Detail = Mapping[str, Any]
#: Parts of the path of a field.
Path = tuple[int | str, ...]
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
    found: Sequence[Detail],
    model: type[BaseModel] | None = None,
    tags: Tags | None = None,
    elsewhere: Mapping[str, str] | None = None,
) -> tuple[FieldError, ...]:
    """The first twenty. `model` is the one that was read, from which misspelt fields are told the right name;
    `elsewhere` has what to say of names that are none of its fields, but that people look for there."""
    return tuple(
        FieldError(
            show_path(user_path(detail["loc"], tags or {})), _explain(detail, model, tags or {}, elsewhere or {})
        )
        for detail in found[:MAX_REPORTED_ERRORS]
    )


def user_path(loc: Sequence[int | str], tags: Tags) -> Path:
    """The path of a field; pydantic's own marks (a key, a tag) are none of the user's."""
    return tuple(part for before, part in pairwise(["", *loc]) if part != "[key]" and (before, part) not in tags)


def show_path(path: Sequence[int | str]) -> str:
    return ".".join(show_name(str(part)) for part in path) or "(body)"


def known_fields(loc: Sequence[int | str], model: type[BaseModel], tags: Tags) -> list[str]:
    """Names of the fields that may stand where an unknown one does."""
    return _fields_at([part for part in loc[:-1] if isinstance(part, str)], model, tags)


def _explain(detail: Detail, model: type[BaseModel] | None, tags: Tags, elsewhere: Mapping[str, str]) -> str:
    if detail["type"] in _OWN_WORDS:
        return str(detail["msg"])
    if detail["type"] != "extra_forbidden" or model is None:
        return explain_value(detail)
    name = shorten(str(detail["loc"][-1]))
    known = known_fields(detail["loc"], model, tags)
    near = nearest_choice(name, known) if name.casefold() not in elsewhere else None
    if near is None and name.casefold() in elsewhere:
        return f"unknown field; {elsewhere[name.casefold()]}"
    hint = f"did you mean {near!r}?" if near else f"known fields here: {', '.join(known) or 'none'}"
    return f"unknown field; {hint}"


def _fields_at(path: Sequence[str], model: type[BaseModel], tags: Tags) -> list[str]:
    """Names of the fields of the model that `path` leads to from `model`."""
    for before, part in pairwise(["", *path]):
        kind = model.model_fields[part].annotation if part in model.model_fields else None
        models = (one for one in (kind, *getattr(kind, "__args__", ())) if isinstance(one, type))
        model = tags.get((before, part)) or next((one for one in models if issubclass(one, BaseModel)), model)
    return list(model.model_fields)


class _Repeated(dict[str, Any]):
    """An object that has some of its keys more than once."""

    keys_twice: tuple[str, ...] = ()


def repeated_keys(body: bytes | str) -> tuple[FieldError, ...]:
    """Keys that a valid JSON body has more than once in one object, of which readers would see one or another."""
    try:
        jiter.from_json(body if isinstance(body, bytes) else body.encode(), catch_duplicate_keys=True)
    except ValueError:  # it names the place, and not the path; no other is in what pydantic has read
        return _find_repeated(body)
    return ()


def _find_repeated(body: bytes | str) -> tuple[FieldError, ...]:
    try:
        document = json.loads(body, object_pairs_hook=_read_object)
    except (ValueError, RecursionError):  # pydantic takes what Python does not: a number of very many digits
        return (FieldError("(body)", "a key is given more than once in one object; give it only once"),)
    return tuple(_walk_repeated(document, ()))[:MAX_REPORTED_ERRORS]


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) == len(pairs):
        return read
    twice, names = _Repeated(read), Counter(name for name, _ in pairs)
    twice.keys_twice = tuple(name for name, times in names.items() if times > 1)
    return twice


def _walk_repeated(value: Any, path: Path) -> Iterator[FieldError]:
    if isinstance(value, _Repeated):
        for name in value.keys_twice:
            yield FieldError(show_path((*path, name)), "given more than once in one object; give it only once")
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _walk_repeated(part, (*path, name))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _walk_repeated(part, (*path, number))
