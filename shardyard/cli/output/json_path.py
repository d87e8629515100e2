"""`-o jsonpath=EXPRESSION`: parts of an answer by a path such as `{.jobs[*].id}`, the common part of what kubectl and
JSONPath libraries take.
"""

import re
from typing import Any, Final

from shardyard.contract.errors import InvalidRequest

#: Every item of a list, or every value of an object.
ALL: Final = None
Part = str | int | None

_PART = re.compile(
    r"""\.(?P<name>[A-Za-z_][\w-]*) | \.(?P<all>\*) | \[(?P<items>\*)\] | \[(?P<index>-?\d+)\]
    | \[(?P<quote>['"])(?P<key>.*?)(?P=quote)\]""",
    re.VERBOSE,
)


def parse_json_path(expression: str) -> list[Part]:
    """
    Raises:
        InvalidRequest: the expression has something else than names, indexes and `*`.
    """
    text = expression.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1].strip()
    text = text.removeprefix("$")
    if text and text[0] not in ".[":
        text = f".{text}"
    parts: list[Part] = []
    place = 0 if text != "." else 1
    while place < len(text):
        found = _PART.match(text, place)
        if found is None:
            raise InvalidRequest(
                f"jsonpath {expression!r}: {text[place:]!r} is not part of a path; there are .name, ['name'], [0], "
                "[-1] and [*], as in {.jobs[*].id}"
            )
        if found["index"] is not None:
            parts.append(int(found["index"]))
        elif found["all"] or found["items"]:
            parts.append(ALL)
        else:
            parts.append(found["name"] if found["name"] is not None else found["key"])
        place = found.end()
    return parts


def find_values(value: Any, path: list[Part]) -> list[Any]:
    """Every value that a path leads to; what is not there leads to nothing."""
    found = [value]
    for part in path:
        found = [inner for each in found for inner in _step_into(each, part)]
    return found


def _step_into(value: Any, part: Part) -> list[Any]:
    if part is ALL:
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if isinstance(part, int):
        return [value[part]] if isinstance(value, list) and -len(value) <= part < len(value) else []
    return [value[part]] if isinstance(value, dict) and part in value else []
