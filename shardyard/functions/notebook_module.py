"""A function of a notebook as a module of its own: its source, and that of what it uses.

A notebook has no file that a job could import. Its cells are not run again either: who knows what they do. What the
function names is followed instead, as far as it is defined in the notebook: functions and classes by their source,
modules by an import, and plain values as they are.
"""

import ast
import builtins
import inspect
import linecache
import os
import textwrap
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import Any

from shardyard.contract.errors import InvalidRequest

PLAIN = (str, bytes, int, float, bool, complex, type(None))


def write_module(function: Callable[..., Any]) -> str:
    """The source of a module that defines the function.

    Raises:
        InvalidRequest: it uses a value that source cannot say; the message names it.
    """
    return _ModuleWriter(inspect.unwrap(function).__globals__).write(function)


class _ModuleWriter:
    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self._imports: dict[str, str] = {}
        self._values: dict[str, str] = {}
        self._definitions: dict[str, str] = {}

    def write(self, function: Callable[..., Any]) -> str:
        self._define(function.__name__, function)
        parts = [*self._imports.values(), "", *self._values.values(), "", *reversed(self._definitions.values())]
        return "\n".join(["from __future__ import annotations", "", *parts]) + "\n"

    def _define(self, name: str, thing: Any) -> None:
        try:
            source = _find_class(thing) if isinstance(thing, type) else textwrap.dedent(inspect.getsource(thing))
        except (OSError, TypeError) as error:
            raise InvalidRequest(f"the source of {name} is not known, so it cannot be sent: {error}") from error
        tree = ast.parse(source)
        defined = tree.body[0]
        if isinstance(defined, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.decorator_list = [one for one in defined.decorator_list if not _is_job(one)]
        self._definitions[name] = ast.unparse(tree)
        for used in sorted(_used_names(tree)):
            self._add(used, name)

    def _add(self, name: str, user: str) -> None:
        if any(name in known for known in (self._imports, self._values, self._definitions)):
            return
        if name not in self._names:
            if not hasattr(builtins, name):
                raise InvalidRequest(f"{user} uses {name}, which is not defined in the notebook")
            return
        value = self._names[name]
        owner = getattr(value, "__module__", None)
        function = getattr(value, "function", value)  # of another function that is a job
        if isinstance(value, ModuleType):
            self._imports[name] = f"import {value.__name__} as {name}"
        elif isinstance(function, FunctionType | type) and function.__module__ == self._names.get("__name__"):
            self._define(name, function)
        elif isinstance(value, FunctionType | type) or (callable(value) and owner and hasattr(value, "__qualname__")):
            self._imports[name] = f"from {owner} import {value.__qualname__} as {name}"
        elif _is_plain(value):
            self._values[name] = f"{name} = {value!r}"
        else:
            raise InvalidRequest(
                f"{user} uses {name}, a {type(value).__name__}, which cannot be sent; make it in the function, or give "
                "it as an argument"
            )


def _find_class(kind: type) -> str:
    """The source of a class of a notebook, which Python does not find by itself before 3.13: it looks for the file of
    the module. The lines of cells are kept under the names that their functions have. Raises OSError."""
    named = [inspect.unwrap(each).__code__.co_filename for each in vars(kind).values() if inspect.isfunction(each)]
    for file in [*dict.fromkeys(named), *reversed([name for name in linecache.cache if not os.path.exists(name)])]:
        source = "".join(linecache.getlines(file))
        if f"class {kind.__name__}" not in source:
            continue
        with suppress(SyntaxError):  # a cell with a command of IPython's
            for node in reversed(ast.parse(source).body):
                if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
                    return ast.unparse(node)
    return textwrap.dedent(inspect.getsource(kind))


def _is_job(decorator: ast.expr) -> bool:
    """Whether a decorator is `shardyard.job(...)`, which has done its work."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called) in ("shardyard.job", "job")


def _used_names(tree: ast.AST) -> set[str]:
    """Names that source reads and does not define itself."""
    read, made = set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else made).add(node.id)
        elif isinstance(node, ast.arg):
            made.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            made.add(node.name)
        elif isinstance(node, ast.alias):
            made.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            made.add(node.name)
    return read - made


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(each) for key, each in value.items())
    if type(value) in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    return type(value) in PLAIN and value == value  # not NaN, which has no source
