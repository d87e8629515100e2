"""The values of a job spec by their paths, as tools show them beside the curves."""

from collections.abc import Iterator, Mapping
from typing import Any

#: A spec may have more than anybody compares.
MAX_VALUES = 500


def flat_values(spec: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """For example `program.data.batch_size: 64`, MAX_VALUES at most. Values of `env` are nobody's to compare."""
    found: dict[str, str | int | float | bool] = {}
    for path, value in _leaves(spec, ""):
        if len(found) == MAX_VALUES:
            break
        if not path.startswith(("program.env.", "program.secrets.")):
            found[path] = value
    return found


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str | int | float | bool]]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _leaves(each, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple):
        for at, each in enumerate(value):
            yield from _leaves(each, f"{path}.{at}")
    elif value is not None:
        yield path, value
