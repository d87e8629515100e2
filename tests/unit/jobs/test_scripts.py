"""What a script is sent with: as much of the shared library as it uses."""

import re
from pathlib import Path

import pytest

import jobs
from jobs import store

SCRIPTS = sorted(path.stem for path in (Path(jobs.__file__).parent / "scripts").glob("[a-z]*.lua"))
DEFINED = r"^local (?:function )?(\w+)"


def library_names() -> set[str]:
    return set(
        re.findall(DEFINED, (Path(jobs.__file__).parent / "store" / "lua" / "_lib.lua").read_text(), re.MULTILINE)
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_brings_every_name_of_the_library_that_it_or_its_parts_use_before_they_use_it(script: str) -> None:
    known: set[str] = set()
    for line in re.sub("--.*", "", store.source(script)).splitlines():
        known |= set(re.findall(DEFINED, line))
        used = set(re.findall(r"\b([A-Za-z_]+)\(|\b([A-Z_]{4,})\b", re.sub(r"'[^']*'", "", line)))
        missing = {name for pair in used for name in pair if name in library_names()} - known
        assert not missing, f"{script}: {line}"


def test_a_script_that_uses_nothing_of_the_library_brings_nothing_of_it() -> None:
    assert "local function" not in store.source("lead")
    assert "sy:backoff" not in store.source("renew")
