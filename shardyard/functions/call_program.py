"""The program of a job that calls a function. It is sent with the function, and runs in each rank.

It needs the standard library alone.
"""

import importlib
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    here = Path(__file__).parent
    call = json.loads((here / "shardyard_call.json").read_text())
    sys.path.insert(0, str(here))
    function: Any = importlib.import_module(call["module"])
    for part in call["function"].split("."):
        function = getattr(function, part)
    value = function(*call["args"], **call["kwargs"])
    if os.environ.get("RANK", "0") == "0":
        keep_value(value, Path(os.environ.get("SHARDYARD_OUTPUT_DIR", "output")))


def keep_value(value: object, directory: Path) -> None:
    """As JSON where that says all of it, else as a pickle."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        text = json.dumps(value, allow_nan=False)
        if json.loads(text) == value and not isinstance(value, tuple):
            (directory / "return_value.json").write_text(text)
            return
    except (TypeError, ValueError):
        pass
    (directory / "return_value.pkl").write_bytes(pickle.dumps(value))


if __name__ == "__main__":
    main()
