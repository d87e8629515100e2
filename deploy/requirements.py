"""Print one of the two parts of the requirements in pyproject.toml: what the whole `service` needs, or only `training`.

The API imports nothing of training, and torch is most of an image, so an image of the API goes without.
"""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

TRAINING = {"torch", "numpy", "scikit-learn"}


#: Extras that both images have: a container cannot install one.
EXTRAS = ("server", "otel", "s3")


def _list_requirements(project: dict[str, Any]) -> list[str]:
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(requirement for extra in EXTRAS for requirement in extras[extra])]


def main(part: str) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    for requirement in _list_requirements(project):
        name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()
        if (name in TRAINING) == (part == "training"):
            print(requirement)


if __name__ == "__main__":
    main(sys.argv[1])
