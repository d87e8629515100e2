"""`--set program.data.batch_size=64`: changes of a job spec by the paths of its fields."""

import re
from collections.abc import Iterable
from typing import Any

from shardyard.contract.errors import InvalidRequest
from shardyard.specs.yaml_text import parse_yaml

#: A name, or a number of a list in brackets; a backslash keeps a dot in a name.
_PART = re.compile(r"(?:^|\.)((?:\\.|[^.\[\]\\=])+)|\[(-?\d+)\]")
#: A list is not filled up to any number.
MAX_LIST = 10_000


def change_spec(spec: dict[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """The spec with `field=value` changes, one after the other. Values are YAML; null takes a field out.

    Raises:
        InvalidRequest: a change has no such form, or leads through what is no object.
    """
    for change in changes:
        path, value = parse_change(change)
        _set_field(spec, path, value, change)
    return spec


def parse_change(change: str) -> tuple[list[str | int], Any]:
    """The path and the value of `field=value`. Raises InvalidRequest."""
    field, equals, text = _split_change(change)
    if not equals:
        raise InvalidRequest(f"--set {change}: write it as field=value, for example program.data.batch_size=64")
    return parse_path(field, change), parse_yaml(text, f"the value of --set {field}") if text else ""


def parse_path(field: str, change: str) -> list[str | int]:
    parts: list[str | int] = []
    place = 0
    while place < len(field) or not parts:
        found = _PART.match(field, place)
        if found is None or (not parts and found[1] is None):
            raise InvalidRequest(
                f"--set {change}: {field!r} is not the path of a field such as program.model.args.hidden[0]"
            )
        parts.append(int(found[2]) if found[1] is None else re.sub(r"\\(.)", r"\1", found[1]))
        place = found.end()
    return parts


def _split_change(change: str) -> tuple[str, str, str]:
    """At the first equals sign without a backslash in front."""
    found = re.search(r"(?<!\\)=", change)
    return (change, "", "") if found is None else (change[: found.start()], "=", change[found.end() :])


def _set_field(spec: Any, path: list[str | int], value: Any, change: str) -> None:
    at = spec
    for number, part in enumerate(path):
        where = format_path(path[:number]) or "the spec"
        is_last = number + 1 == len(path)
        if isinstance(at, dict) and isinstance(part, str):
            if is_last and value is None:
                at.pop(part, None)
            elif is_last:
                at[part] = value
            elif at.get(part) is None:
                at[part] = [] if isinstance(path[number + 1], int) else {}
        elif isinstance(at, list) and isinstance(part, int):
            _set_item(at, part, path, number, value, where, change)
        else:
            kind = "an object" if isinstance(at, dict) else "a list" if isinstance(at, list) else "no object"
            raise InvalidRequest(f"--set {change}: {where} is {kind}, so it has no {part!r}")
        if not is_last:
            at = at[part]


def _set_item(
    items: list[Any], index: int, path: list[str | int], number: int, value: Any, where: str, change: str
) -> None:
    if not -len(items) <= index <= min(len(items), MAX_LIST):
        raise InvalidRequest(f"--set {change}: {where} has {len(items)} items, so there is no [{index}]")
    is_last = number + 1 == len(path)
    if index == len(items):
        items.append(None)
    if is_last and value is None:
        del items[index]
    elif is_last:
        items[index] = value
    elif items[index] is None:
        items[index] = [] if isinstance(path[number + 1], int) else {}


def format_path(path: list[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
