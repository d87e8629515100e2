"""Checks the dashboard's sources, and writes the types that they have of the API.

    python -m tools.web_checks            types are up to date; biome; the unit tests of web/tests
    python -m tools.web_checks --write    write the types

`web/src/schema.ts` is made by openapi-typescript from the schemas of the OpenAPI document. It is checked in: the
package is built where nobody can ask the API for its document.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fastapi import FastAPI

from api.app import ROUTERS
from api.system import openapi

WEB = Path(__file__).parents[1] / "web"
PROGRAMS = WEB / "node_modules" / ".bin"
TYPES = WEB / "src" / "schema.ts"
HEAD = "// Generated from the OpenAPI document of the API by `python -m tools.web_checks --write`: do not edit.\n\n"
SECONDS = 300


def main() -> int:
    if not (PROGRAMS / "openapi-typescript").exists():
        if os.environ.get("CI"):
            print(f"there are no packages in {WEB}/node_modules: make web", file=sys.stderr)
            return 1
        print("web/ is not checked: there are no packages in web/node_modules (npm ci there, or make web)")
        return 0
    types = make_types()
    if "--write" in sys.argv[1:]:
        TYPES.write_text(types)
        return 0
    if not TYPES.is_file() or TYPES.read_text() != types:
        print(f"{TYPES} is not up to date: python -m tools.web_checks --write", file=sys.stderr)
        return 1
    return run("biome", "check", "--error-on-warnings") or run("tsc", "--noEmit") or run("vitest", "run")


def make_types() -> str:
    """The types of all schemas. Routes are left out: they would be two thirds of it, and the page names few of them."""
    app = FastAPI(title="Shardyard")
    for router in ROUTERS:
        app.include_router(router)
    document = openapi.document(app)
    schemas = {"schemas": document["components"]["schemas"]}
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "openapi.json"
        source.write_text(json.dumps({**document, "paths": {}, "security": [], "components": schemas}))
        command = [str(PROGRAMS / "openapi-typescript"), str(source), "--default-non-nullable=false"]
        made = subprocess.run(command, cwd=WEB, capture_output=True, text=True, check=True, timeout=SECONDS)
    return f"{HEAD}{made.stdout}"


def run(program: str, *arguments: str) -> int:
    """Its exit code; what it says is said here."""
    return subprocess.run([PROGRAMS / program, *arguments], cwd=WEB, check=False, timeout=SECONDS).returncode


if __name__ == "__main__":
    sys.exit(main())
