"""What importing the catalogue brings along."""

import subprocess
import sys


def test_importing_the_catalogue_brings_neither_torch_nor_a_validator() -> None:
    code = "import sys, jobs.model.catalogue; print({'torch', 'jsonschema_rs'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"
