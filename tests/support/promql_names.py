"""The metrics and labels that an expression of PromQL names, as far as our expressions need the language."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\s*(?:\{([^}]*)\})?(\s*\()?")
_MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"')
_RANGE = re.compile(r"\[[^\]]*\]")
_WORDS = frozenset({"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring"})


@dataclass
class PromqlNames:
    """Metrics with the labels that their selectors name, and the labels that the expression groups by."""

    metrics: dict[str, set[str]] = field(default_factory=dict)
    grouped: set[str] = field(default_factory=set)


def read_names(expression: str) -> PromqlNames:
    found = PromqlNames()
    rest = _RANGE.sub("", expression)
    for group in _GROUPING.finditer(rest):
        found.grouped |= {label.strip() for label in group[2].split(",") if label.strip()}
    rest = _GROUPING.sub(" ", rest)
    for name, matchers in _selectors(rest):
        found.metrics.setdefault(name, set()).update(matchers)
    return found


def _selectors(text: str) -> Iterator[tuple[str, set[str]]]:
    """Names outside strings that are no functions, with the labels of their matchers."""
    for found in _SELECTOR.finditer(_outside_braces(text)):
        name, matchers, call = found.groups()
        if call is None and name not in _WORDS:
            yield name, set(_MATCHER.findall(matchers or ""))


def _outside_braces(text: str) -> str:
    """With the contents of strings blanked, so that a brace or a name in one is none."""
    return _STRING.sub(lambda string: '"' + " " * (len(string[0]) - 2) + '"', text)
