"""Which child made a launcher fail, as what both printed shows it."""

from workers.supervisor.ending.child_errors import describe_child_error, find_child_error

OF_TWO = """
[rank0]: Traceback (most recent call last):
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 3, in <module>
[rank0]:   File "train.py", line 9, in <module>
[rank1]: ValueError: the cause
[rank0]: RuntimeError: Connection closed by peer
W1122 torch/distributed/elastic: Sending process 7 closing signal SIGTERM
Traceback (most recent call last):
  File "run.py", line 1, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
SUMMARY = """
train.py FAILED
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 3634)
"""


def test_the_child_that_failed_first_is_named_with_its_own_traceback() -> None:
    message = "ChildFailedError: ===="
    found = find_child_error(message, SUMMARY, OF_TWO)

    assert found is not None
    assert found.traceback == (
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: the cause\n'
    )
    assert describe_child_error(message, SUMMARY, found) == (
        "train.py failed on rank 1 with exit code 1: ValueError: the cause"
    )


def test_an_error_of_the_programs_own_is_not_blamed_on_what_was_printed_before() -> None:
    assert find_child_error("RuntimeError: boom", "", OF_TWO) is None


def test_a_child_that_printed_no_traceback_is_not_invented() -> None:
    assert find_child_error("CalledProcessError: Command 'false' returned 1.", "", "a warning\n") is None
