"""Which environments a worker takes."""

import sys
import venv
from pathlib import Path

import pytest

from workers.node.environments import choose_python, find_environments


def test_environments_are_listed_by_name() -> None:
    assert find_environments(f"own={sys.executable}, ") == {"own": Path(sys.executable)}
    assert find_environments("") == {}


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ("python", "write name=/path/to/python"),
        ("Own=/usr/bin/python3", "write name=/path/to/python"),
        ("own=bin/python", "write name=/path/to/python"),
        (f"own={sys.executable},own={sys.executable}", "listed twice"),
        ("own=/nonexistent/python", "is not a working Python"),
        ("own=/bin/true", "is not a working Python"),
    ],
)
def test_a_list_that_cannot_be_used_says_which_entry_and_why(listed: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        find_environments(listed)


def test_an_environment_without_torch_is_refused_with_what_to_do(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    with pytest.raises(ValueError, match=r"environment 'bare': .* has no torch; install it there: .* -m pip install"):
        find_environments(f"bare={tmp_path}/bare/bin/python")


def test_a_job_without_an_environment_starts_in_the_services_own() -> None:
    assert choose_python({}, None) == Path(sys.executable)


def test_an_unknown_environment_is_named_with_those_that_are_known() -> None:
    with pytest.raises(LookupError, match=r"no environment 'b' \(it has: a\)"):
        choose_python({"a": Path(sys.executable)}, "b")
