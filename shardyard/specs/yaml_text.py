"""YAML as people write job specs in it, and as `-o yaml` prints answers. It is YAML 1.2: `no` and `on` are words there,
and 1e-3 is a number. PyYAML reads 1.1, in which it is the other way round.
"""

import io
import json
from typing import Any

from shardyard.contract.errors import InvalidRequest

#: Of a spec, as it is written and as JSON: aliases repeat what they stand for.
MAX_BYTES = 4 * 1024 * 1024


def yaml_to_json(text: bytes, what: str) -> bytes:
    """One YAML document as JSON. `what` names it in errors.

    Raises:
        InvalidRequest: it is not YAML, or has what JSON does not have.
    """
    return dump_json(parse_yaml(text, what), what)


def parse_yaml(text: bytes | str, what: str) -> Any:
    """The value of one YAML document. Raises InvalidRequest."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if len(text) > MAX_BYTES:
        raise InvalidRequest(f"{what} has {len(text):,} bytes; a job spec has {MAX_BYTES:,} at most")
    try:
        return YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = str(error.problem or error.context).replace("\n", " ")
        raise InvalidRequest(f"{what} is not YAML{where}: {problem}") from error
    except RecursionError as error:
        raise InvalidRequest(f"{what} is nested too deeply") from error
    except (YAMLError, ValueError) as error:  # a byte that no text has, a date that is none
        raise InvalidRequest(f"{what} is not YAML: {' '.join(str(error).split())}") from error


def dump_json(value: Any, what: str) -> bytes:
    """
    Raises:
        InvalidRequest: the value is too large, or holds what JSON does not have, for example a date.
    """
    parts, size = [], 0
    try:
        # Part by part: what a few aliases stand for may be larger than the memory.
        for part in json.JSONEncoder(allow_nan=False, default=_refuse_value).iterencode(value):
            size += len(part)
            if size > MAX_BYTES:
                raise InvalidRequest(f"{what} has more than {MAX_BYTES:,} bytes as JSON")
            parts.append(part)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what} cannot be written as JSON: {error}") from error
    return "".join(parts).encode()


def _refuse_value(value: Any) -> Any:
    raise TypeError(f'{value} is a {type(value).__name__}; write it in quotes: "{value}"')


def dump_yaml(value: Any) -> str:
    """A JSON value as YAML."""
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # in the order of the service
    yaml.allow_unicode = True
    yaml.width = 10_000
    out = io.StringIO()
    yaml.dump(value, out)
    return out.getvalue().removesuffix("...\n")
