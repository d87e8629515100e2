"""What is known about the modules that a program calls: which are models, what wraps them, their names. No torch here.

A *root* is a module that is called from outside of all others. The *model* behind it is what is left without its
wrappers (DataParallel, DistributedDataParallel, FullyShardedDataParallel, `torch.compile`'s): `ddp(x)`, `ddp.module(x)`
and `torch.compile(ddp)(x)` call the same model.
"""

import sys
import weakref
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from workers.probe.types import RootModule, WatchedModel

if TYPE_CHECKING:
    from torch import nn

#: What the wrappers are called where torch has them, how they divide work, and where they keep their module.
WRAPPERS = (
    ("torch.nn.parallel", "DataParallel", "dp", "module"),
    ("torch.nn.parallel", "DistributedDataParallel", "ddp", "module"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "fsdp", "_fsdp_wrapped_module"),
    ("torch._dynamo.eval_frame", "OptimizedModule", "", "_orig_mod"),
)
SHARDED = ("torch.distributed.fsdp", "FSDPModule")
#: Between a method and the call of a part there may be a comprehension or a helper.
MAX_FRAMES = 3


class ModuleRegistry:
    """Roots, models, and optimizers of a process. Roots are registered again when a module is wrapped, or an optimizer
    made."""

    def __init__(self) -> None:
        self.roots: dict[int, RootModule] = {}  # by identity of a module that is alive
        self._models: dict[int, WatchedModel] = {}
        self._names: dict[str, WatchedModel] = {}
        self.has_optimizers = False
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.optimizers_by_id: dict[int, weakref.ref[Any]] = {}  # by identity, those that are alive
        self._optimized: tuple[int, set[int]] = (-1, set())
        self._generation = 0

    def invalidate(self) -> None:
        """A module has been wrapped, or an optimizer made."""
        self._generation += 1
        self.roots.clear()

    @property
    def optimizers(self) -> list[Any]:
        return list(self._optimizers)

    def add_optimizer(self, optimizer: Any) -> None:
        if id(optimizer) not in self.optimizers_by_id:
            self.optimizers_by_id[id(optimizer)] = _tracking_ref(optimizer, self.optimizers_by_id)
            self._optimizers.add(optimizer)
            self.has_optimizers = True
            self.invalidate()

    def find_root(self, module: "nn.Module") -> RootModule:
        return self.roots.get(id(module)) or self._register(module)

    def model_of(self, module: "nn.Module") -> WatchedModel:
        """The model that consists of `module`, which is no wrapper."""
        known = self._models.get(id(module))
        if known is None or known.ref() is not module:
            known = WatchedModel(_tracking_ref(module, self._models), type(module).__name__, False)
            self._models[id(module)] = known
        known.has_parameters = known.has_parameters or any(True for _ in module.parameters())
        return known

    def is_reached(self, model: WatchedModel) -> bool:
        """Whether some optimizer changes parameters of this model."""
        if model.reached[0] != self._generation:
            module = model.ref()
            reached = module is not None and any(
                id(parameter) in self._optimized_parameters() for parameter in module.parameters()
            )
            model.reached = self._generation, reached
        return model.reached[1]

    def dotted_name(self, root: RootModule) -> str:
        """The dotted path of what is called: "" for the only model so far, else its class."""
        model = root.model
        if model.name is None:
            model.name = self._new_name(model)
            self._names[model.name] = model
        return ".".join(filter(None, (model.name, root.path)))

    def _new_name(self, model: WatchedModel) -> str:
        others = [other for other in self._models.values() if other is not model and other.is_counted]
        if not others:
            return ""
        number, name = 1, model.class_name
        while name in self._names and self._names[name].ref() is not None:
            number += 1
            name = f"{model.class_name}#{number}"
        return name

    def _optimized_parameters(self) -> set[int]:
        generation, known = self._optimized
        if generation != self._generation:
            groups = [group for optimizer in self._optimizers for group in getattr(optimizer, "param_groups", ())]
            known = {id(parameter) for group in groups for parameter in group["params"]}
            self._optimized = self._generation, known
        return known

    # -- learning --------------------------------------------------------------------------------

    def _register(self, module: "nn.Module") -> RootModule:
        root = self._unwrap(module)
        if not root.kind:
            self._find_wrapped_parts(root)
        root.counts = root.model.has_parameters or bool(root.kind)
        self.roots[id(module)] = root
        return root

    def _unwrap(self, module: "nn.Module") -> RootModule:
        kind, wrapper, inner = "", None, module
        while True:
            found, content = _wrapper_of(inner)
            if content is None:
                break
            if found and not kind:
                kind, wrapper = found, weakref.ref(inner)
            inner = content
        if not kind and _is_instance(inner, SHARDED):
            kind = "fsdp"
        return RootModule(_tracking_ref(module, self.roots), self.model_of(inner), kind, True, wrapper)

    def _find_wrapped_parts(self, root: RootModule) -> None:
        whole = root.model.ref()
        if whole is None:
            return
        for path, module in _wrapped_modules_inside(whole):
            part = self._unwrap(module)
            if part.kind == "fsdp":  # sharding is about parameters: the batch is still that of the whole
                root.kind, root.parts = "fsdp", {}
                return
            part.model, part.path = root.model, path
            root.parts[id(module)] = part


def _wrapper_of(module: "nn.Module") -> "tuple[str, nn.Module | None]":
    """How a wrapper divides work, and what is in it; None for a module that is no wrapper."""
    for home, name, kind, attribute in WRAPPERS:
        if _is_instance(module, (home, name)):
            return kind, module._modules.get(attribute)
    return "", None


def _is_instance(module: "nn.Module", where: tuple[str, str]) -> bool:
    kind = getattr(sys.modules.get(where[0]), where[1], None)
    return kind is not None and isinstance(module, kind)


def _wrapped_modules_inside(whole: "nn.Module") -> "Iterator[tuple[str, nn.Module]]":
    """The outermost wrapped modules below `whole`, with their paths."""
    below: Iterable[tuple[str, Any]] = [(name, child) for name, child in whole._modules.items() if child is not None]
    for name, child in below:
        kind, content = _wrapper_of(child)
        if (content is not None and kind) or _is_instance(child, SHARDED):
            yield name, child
        else:
            yield from ((f"{name}.{path}", module) for path, module in _wrapped_modules_inside(child))


def _tracking_ref(thing: Any, table: dict[int, Any]) -> "weakref.ref[Any]":
    """A weak reference that takes its object out of the table when that is gone."""
    key = id(thing)
    return weakref.ref(thing, lambda _: table.pop(key, None))


# -- methods that call parts of their module ---------------------------------------------------------


def find_owner(module: "nn.Module", frame: FrameType | None) -> "weakref.ref[nn.Module] | None":
    """The module one of whose methods is calling its part `module`, while the owner itself was not called."""
    for caller in _callers(frame):
        owner = _self_of(caller)
        parts = getattr(owner, "modules", None) if hasattr(owner, "_modules") else None
        if parts is not None and owner is not module and any(part is module for part in parts()):
            found: weakref.ref[Any] = weakref.ref(owner)
            return found
    return None


def find_method(owner: "nn.Module", frame: FrameType | None) -> FrameType | None:
    """The frame of a method of `owner` that is calling one of its parts."""
    return next((caller for caller in _callers(frame) if _self_of(caller) is owner), None)


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    for _ in range(MAX_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def _self_of(frame: FrameType) -> Any:
    """The object whose method this is, by the name `self`: the first argument of a plain function may be a model."""
    code = frame.f_code
    return frame.f_locals.get("self") if code.co_argcount and code.co_varnames[0] == "self" else None
