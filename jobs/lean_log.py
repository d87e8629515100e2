"""Imports structlog without rich, which it would take, where there is one, for colours that no service prints: 80
modules, 6 MB in every process. The service's programs import this before anything
else of ours."""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # how Python says that it is not there
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]
