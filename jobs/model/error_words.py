"""What is wrong with a value, in words that say what would be right: one table for all kinds of pydantic's errors."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from shardyard.contract.plain_text import describe_unsafe, escape_unsafe, find_unsafe

#: Longest part of a request that an error repeats.
MAX_ECHOED = 80

#: What texts of a pattern look like; `pattern` adds to it.
_OF_PATTERNS: dict[str, str] = {}
#: What people call something, by how this service calls it.
_SYNONYMS = {
    "dp": ("dataparallel", "nn.dataparallel", "data_parallel"),
    "ddp": ("distributeddataparallel", "distributed", "distributed_data_parallel"),
    "fsdp": ("fullyshardeddataparallel", "fsdp2", "fully_shard", "zero"),
    "single": ("none", "no", "local"),
    "bfloat16": ("bf16",),
    "float16": ("fp16", "half", "16"),
    "float32": ("fp32", "float", "32", "full"),
    "cancelled": ("canceled",),
    "succeeded": ("completed", "done", "success", "finished"),
    "failed": ("error", "errored"),
    "queued": ("pending", "waiting"),
}


def pattern(expression: str, words: str) -> str:
    """The pattern itself; texts that do not match it are told `words`, such as "lower-case letters and digits"."""
    _OF_PATTERNS[expression] = words
    return expression


def has_words(expression: str) -> bool:
    return expression in _OF_PATTERNS


def shorten(text: str) -> str:
    return text if len(text) <= MAX_ECHOED else text[:MAX_ECHOED] + "..."


def show_name(name: str) -> str:
    """A name that a client has chosen, for a message."""
    return escape_unsafe(shorten(name))


def nearest_choice(given: object, choices: Iterable[str]) -> str | None:
    """The one of `choices` that was meant, as far as can be told."""
    if not isinstance(given, str):
        return None
    word, by_folded = shorten(given).casefold(), {choice.casefold(): choice for choice in choices}
    for choice in by_folded:
        if word in _SYNONYMS.get(choice, ()):
            return by_folded[choice]
    near = difflib.get_close_matches(word, by_folded, n=1)
    return by_folded[near[0]] if near else None


def unknown_name(given: str, known: Iterable[str], noun: str) -> str:
    """Of a name of a field or a parameter that is not there."""
    known = tuple(known)
    near = nearest_choice(given, known)
    hint = f"did you mean {near!r}?" if near else f"known {noun}s here: {', '.join(known) or 'none'}"
    return f"unknown {noun}; {hint}"


def choices_of(detail: Mapping[str, Any]) -> list[str]:
    """What may stand where another word was given; none where something else is wrong."""
    if detail["type"] not in ("literal_error", "enum"):
        return []
    return re.findall(r"'([^']*)'", detail["ctx"]["expected"])


def explain_value(detail: Mapping[str, Any]) -> str:
    """What one of pydantic's errors says of a value, and the value itself."""
    given = detail.get("input")
    got = f" (got {shorten(repr(given))})"
    if detail["type"] == "missing":
        return "required, but missing"
    if detail["type"] == "value_error":  # raised by a validator of ours, in our own words
        return f"{detail['ctx']['error']}{got}"
    unsafe = find_unsafe(given) if isinstance(given, str) else None
    if detail["type"] == "string_pattern_mismatch":
        words = describe_unsafe(unsafe) if unsafe is not None else _OF_PATTERNS.get(detail["ctx"]["pattern"])
        return f"{words or 'not in the form that is required here'}{got}"
    if choices := choices_of(detail):
        return _explain_choice(given, choices) + got
    words = _WORDS.get(detail["type"], "not a valid value here").format_map(_plain_bounds(detail))
    return words if detail["type"] in _WITHOUT_VALUE else words + got


def explain_argument(kind: str, rule: Mapping[str, Any], given: object) -> str:
    """As `explain_value`, of an argument of a recipe that does not follow its JSON schema: `kind` is the keyword."""
    got = f" (got {shorten(json.dumps(given, ensure_ascii=False))})"
    if kind == "enum":
        return _explain_choice(given, [str(option) for option in rule["options"]]) + got
    if kind == "type":
        return " or ".join(_TYPES[one] for one in rule["types"]) + got
    return _LIMITS.get(kind, "not a valid value here").format_map(rule) + got


def _explain_choice(given: object, choices: list[str]) -> str:
    near = nearest_choice(given, choices)
    return _one_of(choices) + (f'; did you mean "{near}"?' if near else "")


def _plain_bounds(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Bounds as people write them: 60 and not 60.0."""
    bounds: Mapping[str, Any] = detail.get("ctx", {})
    return {name: f"{bound:.15g}" if isinstance(bound, float) else bound for name, bound in bounds.items()}


def _one_of(choices: list[str]) -> str:
    quoted = [f'"{choice}"' for choice in choices]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"


_TEXT, _WHOLE, _NUMBER = 'text in quotes, such as "abc"', "a whole number", "a number"
_OBJECT, _LIST = "an object, {{ ... }}", "a list, [ ... ]"
_YES_OR_NO = "true or false, without quotes"
#: By the type of pydantic's errors; bounds are filled in.
_WORDS: dict[str, str] = {
    kind: words
    for kinds, words in (
        (("string_type", "string_unicode"), _TEXT),
        (("int_type", "int_parsing", "int_from_float"), _WHOLE),
        (("int_parsing_size",), "a smaller number"),
        (("float_type", "float_parsing"), _NUMBER),
        (("finite_number",), "a finite number"),
        (("bool_type", "bool_parsing"), _YES_OR_NO),
        (("dict_type", "model_type", "model_attributes_type", "mapping_type"), _OBJECT),
        (("list_type", "tuple_type", "frozen_set_type", "set_type", "iterable_type"), _LIST),
        (("greater_than_equal",), "at least {ge}"),
        (("less_than_equal",), "at most {le}"),
        (("greater_than",), "more than {gt}"),
        (("less_than",), "less than {lt}"),
        (("string_too_short",), "at least {min_length} characters"),
        (("string_too_long",), "at most {max_length} characters"),
        (("too_short",), "a length of at least {min_length}; this has {actual_length}"),
        (("too_long",), "a length of at most {max_length}; this has more"),
        (("extra_forbidden",), "unknown field; leave it out"),
        (("none_required",), "null, or leave it out"),
        (("datetime_parsing", "datetime_from_date_parsing", "datetime_type"), "a time, such as 2026-01-31T20:00:00Z"),
        (("timezone_aware",), "a time with its offset from UTC, such as 2026-01-31T20:00:00Z"),
        (("union_tag_invalid", "union_tag_not_found"), "one of the known kinds"),
    )
    for kind in kinds
}
#: The whole value would say nothing, or too much.
_WITHOUT_VALUE = frozenset({"too_short", "too_long", "extra_forbidden"})
#: By the types and the keywords of JSON Schema.
_TYPES = {
    "string": _TEXT,
    "integer": _WHOLE,
    "number": _NUMBER,
    "boolean": _YES_OR_NO,
    "object": _OBJECT.format(),
    "array": _LIST,
    "null": "null",
}
_LIMITS = {
    "minimum": "at least {limit}",
    "maximum": "at most {limit}",
    "exclusiveMinimum": "more than {limit}",
    "exclusiveMaximum": "less than {limit}",
    "minItems": "a length of at least {limit}",
    "maxItems": "a length of at most {limit}",
    "minLength": "at least {limit} characters",
    "maxLength": "at most {limit} characters",
}
