"""Which process of pytest-xdist runs which file of the tests."""

from pathlib import Path

from tests.support.file_order import SHARED, choose_file

ROOT = Path(__file__).parents[2]
FAULT, OTHER_FAULT, WORKER = "tests/faults/test_a.py", "tests/faults/test_b.py", "tests/integration/workers/test_a.py"
ALONE = "tests/unit/test_a.py"


def test_directories_that_share_something_are_there() -> None:
    assert [directory for directory in SHARED if not (ROOT / directory / "__init__.py").exists()] == []


def test_a_process_begins_with_a_service_that_nobody_has_started() -> None:
    assert choose_file([FAULT, ALONE, WORKER], (), ()) == WORKER
    assert choose_file([FAULT, ALONE, WORKER], (), ("worker",)) == FAULT


def test_files_that_share_a_service_stay_with_the_process_that_has_started_it() -> None:
    assert choose_file([ALONE, FAULT, OTHER_FAULT], ("site",), ("site",)) == FAULT
    assert choose_file([FAULT, OTHER_FAULT, ALONE], (), ("site",)) == ALONE


def test_the_last_files_of_others_are_run_by_who_has_nothing_else() -> None:
    assert choose_file([FAULT, OTHER_FAULT], (), ("site",)) == OTHER_FAULT
