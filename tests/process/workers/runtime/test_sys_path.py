"""Our packages and the user's in one process."""

import subprocess
import sys
from pathlib import Path

import pytest

from workers.runtime.sys_path import HOME, HidingFinder

#: What a rank does before the program, in a process of its own: it takes modules out of `sys.modules`.
BEGIN = """
import queue, sys
import workers.rank.script
from pathlib import Path
from workers.runtime import import_hook as packages
from workers.runtime import sys_path as isolation
packages.remember_modules()
import jobs.bundles.strict_zip
isolation.set_path(Path({first!r}))
"""


def run(first: Path, program: str) -> str:
    command = [sys.executable, "-c", BEGIN.format(first=str(first)) + program]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_directory_with_the_name_of_a_package_of_ours_is_the_programs_even_without_an_init(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "mine.py").write_text("")
    assert run(tmp_path, "import jobs.mine; print(jobs.mine.__file__)") == str(tmp_path / "jobs" / "mine.py")


def test_a_program_finds_none_of_our_packages_but_the_one_that_is_for_it(tmp_path: Path) -> None:
    program = """
for name in ("api", "jobs", "workers"):
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        print(error.name)
from shardyard import job
print(job.__name__)
"""
    assert run(tmp_path, program).split() == ["api", "jobs", "workers", "shardyard.job"]


def test_none_of_our_modules_is_left_whenever_it_was_imported(tmp_path: Path) -> None:
    program = "print([name for name in sys.modules if name.partition('.')[0] in ('api', 'jobs', 'workers')])"
    assert run(tmp_path, program) == "[]"


def test_a_module_of_the_program_comes_before_one_of_its_name_that_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("mine = True")
    (tmp_path / "abc.py").write_text("mine = True")  # frozen into Python, which never looks for it
    program = "import queue, abc; print(queue.mine, hasattr(abc, 'mine'))"
    assert run(tmp_path, program) == "True False"


def test_where_ours_lie_among_other_packages_they_are_looked_past(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'jobs'"):
        HidingFinder.find_spec("jobs")
    (tmp_path / "jobs").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    found = HidingFinder.find_spec("jobs")
    assert found is not None
    assert list(found.submodule_search_locations or ()) == [str(tmp_path / "jobs")]
    assert (
        HidingFinder.find_spec("json")
        is HidingFinder.find_spec("jobs.model.spec", ["x"])
        is HidingFinder.find_spec("shardyard")
        is None
    )
