"""What is known about the modules that a program calls: which are models, what wraps them, their names. No torch here.

A *root* is a module that is called from outside of all others. The *model* behind it is what is left without its
wrappers (DataParallel, DistributedDataParallel, FullyShardedDataParallel, `torch.compile`'s): `ddp(x)`, `ddp.module(x)`
and `torch.compile(ddp)(x)` call the same model.
"""

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from jobs.protocol.records import Shape

#: What the wrappers are called where torch has them, how they divide work, and where they keep their module.
WRAPPERS = (
    ("torch.nn.parallel", "DataParallel", "dp", "module"),
    ("torch.nn.parallel", "DistributedDataParallel", "ddp", "module"),
    ("torch.distributed.fsdp", "FullyShardedDataParallel", "fsdp", "_fsdp_wrapped_module"),
    ("torch._dynamo.eval_frame", "OptimizedModule", "", "_orig_mod"),
)
SHARDED = ("torch.distributed.fsdp", "FSDPModule")


@dataclass(slots=True, eq=False)
class Model:
    """One model, however it is wrapped. `name` is given when something is first sent about it."""

    ref: "weakref.ref[nn.Module]"
    kind_of_module: str
    has_parameters: bool
    name: str | None = None
    counted: bool = False  # a forward of it has been counted
    reached: tuple[int, bool] = (-1, False)  # whether an optimizer has parameters of it, as of a generation

    @property
    def training(self) -> bool:
        """The flag of the inner module: wrappers of some frameworks leave their own wrong."""
        module = self.ref()
        return module is None or module.training


@dataclass(slots=True, eq=False)
class Root:
    """A module as it is called. `parts` are wrapped modules inside a root that is not wrapped itself, by identity."""

    ref: "weakref.ref[nn.Module]"
    model: Model
    kind: str  # "" | dp | ddp | fsdp
    counts: bool  # it has parameters, or divides work: its calls are forwards
    wrapper: "weakref.ref[nn.Module] | None" = None
    path: str = ""  # of a part, within the root's model
    parts: "dict[int, Root]" = field(default_factory=dict)
    looked: bool = False  # for a method that calls it, below
    around: "weakref.ref[nn.Module] | None" = None  # a module that it is a part of, and whose methods call it
    known: "tuple[dict[Shape | None, Any], dict[Shape | None, Any]]" = field(default_factory=lambda: ({}, {}))
    # usual.Known forwards by the shape of their first input, without gradients and with them


class Models:
    """Everything learned about modules. It is learned anew when one is wrapped, or an optimizer made."""

    def __init__(self) -> None:
        self.roots: dict[int, Root] = {}  # by identity of a module that is alive
        self._models: dict[int, Model] = {}
        self._names: dict[str, Model] = {}
        self.has_optimizers = False
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self.known_optimizers: dict[int, weakref.ref[Any]] = {}  # by identity, those that are alive
        self._optimized: tuple[int, set[int]] = (-1, set())
        self._generation = 0

    def changed(self) -> None:
        """A module has been wrapped, or an optimizer made."""
        self._generation += 1
        self.roots.clear()

    @property
    def optimizers(self) -> list[Any]:
        return list(self._optimizers)

    def optimizer_made(self, optimizer: Any) -> None:
        if id(optimizer) not in self.known_optimizers:
            self.known_optimizers[id(optimizer)] = _ref(optimizer, self.known_optimizers)
            self._optimizers.add(optimizer)
            self.has_optimizers = True
            self.changed()

    def root(self, module: "nn.Module") -> Root:
        return self.roots.get(id(module)) or self._learn(module)

    def of_inner(self, module: "nn.Module") -> Model:
        """The model that consists of `module`, which is no wrapper."""
        known = self._models.get(id(module))
        if known is None or known.ref() is not module:
            known = Model(_ref(module, self._models), type(module).__name__, False)
            self._models[id(module)] = known
        known.has_parameters = known.has_parameters or any(True for _ in module.parameters())
        return known

    def is_reached(self, model: Model) -> bool:
        """Whether some optimizer changes parameters of this model."""
        if model.reached[0] != self._generation:
            module = model.ref()
            reached = module is not None and any(
                id(parameter) in self._parameters() for parameter in module.parameters()
            )
            model.reached = self._generation, reached
        return model.reached[1]

    def name(self, root: Root) -> str:
        """The dotted path of what is called: "" for the only model so far, else its class."""
        model = root.model
        if model.name is None:
            model.name = self._new_name(model)
            self._names[model.name] = model
        return ".".join(filter(None, (model.name, root.path)))

    def _new_name(self, model: Model) -> str:
        others = [other for other in self._models.values() if other is not model and other.counted]
        if not others:
            return ""
        number, name = 1, model.kind_of_module
        while name in self._names and self._names[name].ref() is not None:
            number += 1
            name = f"{model.kind_of_module}#{number}"
        return name

    def _parameters(self) -> set[int]:
        generation, known = self._optimized
        if generation != self._generation:
            groups = [group for optimizer in self._optimizers for group in getattr(optimizer, "param_groups", ())]
            known = {id(parameter) for group in groups for parameter in group["params"]}
            self._optimized = self._generation, known
        return known

    # -- learning --------------------------------------------------------------------------------

    def _learn(self, module: "nn.Module") -> Root:
        root = self._unwrapped(module)
        if not root.kind:
            self._find_parts(root)
        root.counts = root.model.has_parameters or bool(root.kind)
        self.roots[id(module)] = root
        return root

    def _unwrapped(self, module: "nn.Module") -> Root:
        kind, wrapper, inner = "", None, module
        while True:
            found, content = _wrapping(inner)
            if content is None:
                break
            if found and not kind:
                kind, wrapper = found, weakref.ref(inner)
            inner = content
        if not kind and _is(inner, SHARDED):
            kind = "fsdp"
        return Root(_ref(module, self.roots), self.of_inner(inner), kind, True, wrapper)

    def _find_parts(self, root: Root) -> None:
        whole = root.model.ref()
        if whole is None:
            return
        for path, module in _wrapped_inside(whole):
            part = self._unwrapped(module)
            if part.kind == "fsdp":  # sharding is about parameters: the batch is still that of the whole
                root.kind, root.parts = "fsdp", {}
                return
            part.model, part.path = root.model, path
            root.parts[id(module)] = part


def _wrapping(module: "nn.Module") -> "tuple[str, nn.Module | None]":
    """How a wrapper divides work, and what is in it; None for a module that is no wrapper."""
    for home, name, kind, attribute in WRAPPERS:
        if _is(module, (home, name)):
            return kind, module._modules.get(attribute)
    return "", None


def _is(module: "nn.Module", where: tuple[str, str]) -> bool:
    kind = getattr(sys.modules.get(where[0]), where[1], None)
    return kind is not None and isinstance(module, kind)


def _wrapped_inside(whole: "nn.Module") -> "Iterator[tuple[str, nn.Module]]":
    """The outermost wrapped modules below `whole`, with their paths."""
    below: Iterable[tuple[str, Any]] = [(name, child) for name, child in whole._modules.items() if child is not None]
    for name, child in below:
        kind, content = _wrapping(child)
        if (content is not None and kind) or _is(child, SHARDED):
            yield name, child
        else:
            yield from ((f"{name}.{path}", module) for path, module in _wrapped_inside(child))


def _ref(thing: Any, table: dict[int, Any]) -> "weakref.ref[Any]":
    """A weak reference that takes its object out of the table when that is gone."""
    forget: Callable[[int], None] = lambda key: table.pop(key, None)  # noqa: E731
    key = id(thing)
    return weakref.ref(thing, lambda _: forget(key))
