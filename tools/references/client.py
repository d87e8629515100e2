"""Every public method of the client's classes, with its signature and what it is for."""

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from shardyard.client import Client, Job
from shardyard.client.report import SplitReport
from shardyard.specs.builders import Component, Data, Recipe, Script

#: Methods from which the others are made, and which users need not call.
INNER: Final = {"call", "items", "json", "run"}
CLASSES: Final[tuple[type, ...]] = (Client, Job, SplitReport, Recipe, Script, Component, Data)


def text() -> str:
    return (
        "# Classes of the client\n\n"
        "All public methods of `shardyard`'s classes. [The Python client](../client.md) shows how they are used; "
        "`AsyncClient` and `AsyncJob` have the same methods, to be awaited.\n\n"
    ) + "\n".join(part for kind in CLASSES for part in _class(kind))


def _class(kind: type) -> Iterator[str]:
    yield f"## {kind.__name__}\n"
    yield f"```python\n{kind.__name__}{_signature(kind)}\n```\n"
    if kind.__doc__ and not kind.__doc__.startswith(f"{kind.__name__}("):
        yield f"{_words(kind.__doc__)}\n"
    for name, member in inspect.getmembers(kind):
        if name.startswith("_") or name in INNER:
            continue
        if isinstance(member, property):
            yield f"### {kind.__name__}.{name}\n\n{_words(member.__doc__) or 'An attribute.'}\n"
        elif inspect.isroutine(member):
            yield f"### {kind.__name__}.{name}()\n\n```python\n{name}{_signature(member)}\n```\n"
            if member.__doc__:
                yield f"{_words(member.__doc__)}\n"


def _signature(called: Callable[..., Any]) -> str:
    """As it is called: without `self`, and without the modules of types."""
    signature = inspect.signature(called)
    shown = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_plain(parameter.default))
        for name, parameter in signature.parameters.items()
        if name != "self"
    ]
    return str(inspect.Signature(shown))


class _Shown:
    def __init__(self, words: str) -> None:
        self._words = words

    def __repr__(self) -> str:
        return self._words


def _plain(default: Any) -> Any:
    """A default without an address in memory, which would differ from run to run."""
    if default is inspect.Parameter.empty:
        return default
    return _Shown("...") if " at 0x" in repr(default) or "<" in repr(default) else default


def _words(documented: str | None) -> str:
    """A docstring as Markdown: what may be raised becomes a list."""
    words = inspect.cleandoc(documented or "")
    body, mark, raised = words.partition("Raises:\n")
    if not mark:
        return words
    items = re.sub(r"\n {5,}", " ", raised)
    listed = "\n".join(f"- `{name}`: {why}" for name, why in re.findall(r"^ *([\w, ]+): (.*)$", items, re.MULTILINE))
    return f"{body.strip()}\n\nRaises:\n\n{listed}"
