"""How the tree reads from its names alone: one-word names, class names that stand twice, wide classes, full folders.

    python -m tools.name_report            # a table by package
    python -m tools.name_report workers/node

Prints only. The figures are for whoever renames; nothing in continuous integration depends on them.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("api", "jobs", "workers", "shardyard", "tools")
MAX_ATTRIBUTES = 15
MAX_MODULES = 20
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    path: Path
    tree: ast.Module


def main() -> int:
    prefix = sys.argv[1] if len(sys.argv) > 1 else ""
    modules = [module for module in read_modules() if str(module.path).startswith(prefix)]
    print_one_word_names(modules)
    print_repeated_classes(modules)
    print_wide_classes(modules)
    print_full_folders(modules)
    return 0


def read_modules() -> Iterator[Module]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield Module(path.relative_to(ROOT), ast.parse(path.read_text()))


def print_one_word_names(modules: list[Module]) -> None:
    """Of classes and functions, methods and private ones included; names that Python gives are left out."""
    counted: dict[str, Counter[bool]] = defaultdict(Counter)
    for module in modules:
        room = "/".join(module.path.parts[:2]) if len(module.path.parts) > 2 else module.path.parts[0]
        for node in ast.walk(module.tree):
            if isinstance(node, Definition) and not node.name.startswith("__"):
                counted[room][len(WORD.findall(node.name)) == 1] += 1
    total: Counter[bool] = sum(counted.values(), Counter())
    for room, found in [*sorted(counted.items()), ("all", total)]:
        print(f"{room:<24} {found.total():>5} names {found[True] / found.total():>5.0%} of one word")


def print_repeated_classes(modules: list[Module]) -> None:
    """Private ones included: whoever searches for a name meets both."""
    places = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(module.path))
    for name, found in sorted(places.items()):
        if len(found) > 1:
            print(f"class {name} stands in {', '.join(found)}")


def print_wide_classes(modules: list[Module]) -> None:
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and len(found := assigned_attributes(node)) > MAX_ATTRIBUTES:
                print(f"{module.path}: {node.name} has {len(found)} attributes")


def assigned_attributes(node: ast.ClassDef) -> set[str]:
    """Names that methods of a class set on `self`."""
    return {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


def print_full_folders(modules: list[Module]) -> None:
    folders = Counter(module.path.parent for module in modules if module.path.name != "__init__.py")
    for folder, count in folders.items():
        if count > MAX_MODULES:
            print(f"{folder} has {count} modules")


if __name__ == "__main__":
    sys.exit(main())
