import os
import signal
import subprocess
import sys
import time

import pytest

from jobs.support import failpoints

REACH_TWICE = (
    "from jobs.support.failpoints import reach; reach('here'); print('once', flush=True); reach('here'); print('twice')"
)


def reach_twice(value: str) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {failpoints.VARIABLE: value}
    return subprocess.run([sys.executable, "-c", REACH_TWICE], env=environment, capture_output=True, text=True)


def test_a_place_that_nobody_armed_does_nothing() -> None:
    done = reach_twice("elsewhere:kill")
    assert (done.returncode, done.stdout.split()) == (0, ["once", "twice"])


def test_a_place_kills_its_process() -> None:
    done = reach_twice("here:kill")
    assert (done.returncode, done.stdout) == (-signal.SIGKILL, "")


def test_a_place_acts_at_the_time_that_is_named_and_no_other() -> None:
    done = reach_twice("elsewhere:kill, here:error@2")
    assert (done.returncode, done.stdout.split()) == (1, ["once"])
    assert done.stderr.endswith("OSError: [Errno 5] failpoint here\n")


def test_a_place_stalls() -> None:
    began = time.monotonic()
    assert reach_twice("here:stall=0.5@1").returncode == 0
    assert time.monotonic() - began > 0.5


@pytest.mark.parametrize("value", ["here", "here:", "here:explode", "here:stall", "here:kill=3", ":kill", "a:kill,b"])
def test_a_value_that_says_nothing_is_refused_with_what_would_do(value: str) -> None:
    with pytest.raises(ValueError, match="name:kill, name:error or name:stall=SECONDS"):
        failpoints.parse_failpoints(value)


def test_the_variable_is_kept_where_it_is_set_and_nothing_else() -> None:
    assert failpoints.inherited_variable({"PATH": "/bin"}) == {}
    assert failpoints.inherited_variable({"PATH": "/bin", failpoints.VARIABLE: "x:kill"}) == {
        failpoints.VARIABLE: "x:kill"
    }
