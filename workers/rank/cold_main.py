"""The main module of a rank that starts cold, run by its path in a Python that may have none of our packages.

Its one argument is the number of a descriptor, from which `workers.rank.cold_start` reads what the rank has to know.
"""

import json
import os
import sys
import traceback
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any, NoReturn

EXIT_BROKEN = 99


def main() -> NoReturn:
    try:
        found = _read_handover(int(sys.argv[1]))
        packages: Any = _load_import_hook()
        with packages.importable(packages.usable_packages(found["packages"])):
            sys.modules["workers.runtime.import_hook"] = packages
            from workers.rank import cold_start

            run = cold_start.continue_rank(found)
    except BaseException:  # noqa: BLE001  (whatever it is, the rank cannot go on)
        traceback.print_exc()
        os._exit(EXIT_BROKEN)
    run()


def _read_handover(fd: int) -> dict[str, Any]:
    with open(fd, "rb") as file:
        file.seek(0)
        found: dict[str, Any] = json.load(file)
        return found


def _load_import_hook() -> ModuleType:
    """`workers.runtime.import_hook`, before `workers` can be imported."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = os.path.join(os.path.dirname(here), "runtime", "import_hook.py")
    spec = spec_from_file_location("workers.runtime.import_hook", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
