"""Run by every Python that a script's rank starts: lets the probe follow into it if it imports torch.

The rank has this directory first on PYTHONPATH. Until the program asks for torch, or for
`shardyard.job`, this costs one look at each import; nothing of it may ever break the program, so
what fails here fails silently, and a Python that is too old for us, or was given no socket to speak
to, is left alone. An environment's own `sitecustomize` runs as it would without this one.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # typing is not imported by every program
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))


class ImportTrigger:
    """A finder that only waits for its moment. It also finds the helper that a program may import anywhere."""

    def __init__(self) -> None:
        self._packages: Any = None
        self._looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "torch" and not self._looking:
            self._try_to_join()
            return self._find_anew(name)
        if name == "shardyard":
            return PathFinder.find_spec(name) or PathFinder.find_spec(name, [ROOT])
        if name == "shardyard.script.job":  # what `shardyard.job` offers
            spec = PathFinder.find_spec(name, path)
            if spec is not None:
                spec.loader = CallbackLoader(spec.loader, self._try_to_join)  # type: ignore[assignment]
            return spec
        return None

    def _find_anew(self, name: str) -> ModuleSpec | None:
        """The probe has a finder of its own now, which must be asked first."""
        from importlib.util import find_spec

        self._looking = True
        try:
            return find_spec(name)
        finally:
            self._looking = False

    def _try_to_join(self) -> None:
        """Connect this process to its job, as far as that is not done."""
        try:
            if self._packages is None:
                self._packages = _load_file(os.path.join(ROOT, "workers", "runtime", "import_hook.py"))
            with self._packages.importable(self._packages.usable_packages(os.environ["SHARDYARD_LENT"])):
                sys.modules["workers.runtime.import_hook"] = self._packages  # there is to be one
                from workers.probe import descendants

                descendants.join(os.environ)
        except Exception:  # noqa: BLE001, S110  (whatever it is, the program goes on without a probe)
            pass


class CallbackLoader:
    """The loader of a module, and a call when the module has run."""

    def __init__(self, loader: Any, done: Callable[[], None]) -> None:
        self._loader = loader
        self._done = done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._done()


def _load_file(path: str) -> ModuleType:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("workers.runtime.import_hook", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run_hidden() -> None:
    """Run the `sitecustomize` that this one hides."""
    spec = PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    hidden = {HERE} if ROOT.endswith("-packages") else {HERE, ROOT}
    sys.path[:] = [place for place in sys.path if place not in hidden]
    if sys.version_info >= (3, 11) and "SHARDYARD_PROBE_SOCKET" in os.environ:
        sys.meta_path.insert(0, ImportTrigger())
    _run_hidden()
