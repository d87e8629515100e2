"""Calls back when a module has been imported, so that torch need not be imported early to be watched.

What is there already is called back for at once. A module of torch is never touched before torch itself is
complete, since its parts import each other.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ROOT = "torch"

Callback = Callable[[ModuleType], None]


def when_imported(callbacks: Mapping[str, Callback]) -> "CallbackFinder":
    """Call each callback once with the module of its name, when that has run to its end. The names are those of torch
    and of modules within it. A callback must not raise."""
    finder = CallbackFinder(dict(callbacks))
    sys.meta_path.insert(0, finder)
    finder.catch_up()
    return finder


class CallbackFinder(MetaPathFinder):
    """Finds nothing by itself: it has the other finders look, and puts a loader that calls back around theirs."""

    def __init__(self, callbacks: dict[str, Callback]) -> None:
        self._callbacks = callbacks
        self._looking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != ROOT and fullname not in self._callbacks:
            return None
        if getattr(self._looking, "name", None) == fullname:
            return None
        self._looking.name = fullname
        try:
            spec = _find_elsewhere(self, fullname, path, target)
        finally:
            self._looking.name = None
        if spec is not None and spec.loader is not None:
            spec.loader = _CallbackLoader(spec.loader, self.catch_up)
        return spec

    def catch_up(self) -> None:
        """Call back for everything that has been imported, once torch is complete."""
        if not _is_complete(ROOT):
            return
        for name in [name for name in self._callbacks if _is_complete(name)]:
            callback = self._callbacks.pop(name, None)
            if callback is not None:
                callback(sys.modules[name])


def _find_elsewhere(
    finder: CallbackFinder, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> ModuleSpec | None:
    for other in list(sys.meta_path):
        look: Any = getattr(other, "find_spec", None)
        spec = look(name, path, target) if other is not finder and look is not None else None
        if spec is not None:
            return spec  # type: ignore[no-any-return]
    return None


def _is_complete(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


class _CallbackLoader(Loader):
    """The loader of a module, and a call when it is done. The module then has its own loader back."""

    def __init__(self, loader: Any, done: Callable[[], None]) -> None:
        self._loader = loader
        self._done = done

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        module.__loader__ = spec.loader = self._loader
        self._loader.exec_module(module)
        state: Any = spec
        before, state._initializing = state._initializing, False  # it has run; the interpreter says so only later
        try:
            self._done()
        finally:
            state._initializing = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
