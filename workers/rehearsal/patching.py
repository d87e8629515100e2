"""Replaces attributes of torch's modules and classes."""

import functools
import sys
from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]


def wrap_attribute(owner: Any, name: str, wrapper: Callable[[Function], Function]) -> None:
    """Replace a function of `owner` by what `wrapper` makes of it. Versions of torch without it are left alone."""
    original = getattr(owner, name, None)
    if original is not None:
        setattr(owner, name, functools.wraps(original)(wrapper(original)))


def replace_everywhere(package: str, name: str, original: Any, own: Any) -> None:
    """Replace `name` in `package` and all modules below it that have imported it."""
    for path, module in list(sys.modules.items()):
        inside = path == package or path.startswith(f"{package}.")
        if inside and module is not None and module.__dict__.get(name) is original:
            setattr(module, name, own)
