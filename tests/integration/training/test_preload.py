"""The server that ranks are forked from must stay forkable."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.integration

COUNT = """
import os, sys, threading
import workers.rank.preload
print(threading.active_count(), len(os.listdir("/proc/self/task")), "torch._dynamo" in sys.modules)
from torch import cuda
print(cuda.is_initialized(), "sklearn" in sys.modules)
"""


def test_preloading_starts_no_thread_and_touches_no_gpu() -> None:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", COUNT], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stdout.split() == ["1", "1", "True", "False", "False"]


def test_the_context_of_a_rank_needs_no_torch() -> None:
    code = "import sys, workers.runtime.context; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "False"


TEARDOWN = """
import weakref
import workers.rank.preload
class Own: pass
own = Own()
weakref.finalize(own, print, "own")
print([each.peek()[1] for each in weakref.finalize._registry] == [print])
"""


@pytest.mark.slow
def test_a_rank_ends_what_its_program_made_and_not_what_the_imports_made() -> None:
    ran = subprocess.run([sys.executable, "-c", TEARDOWN], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.split() == ["True", "own"]


COMPILE_TIMES = """
import atexit, sys
import workers.rank.preload as preload
from torch._dynamo import utils
class Looked:
    def find_spec(self, name, *_):
        print("looked for", name)
utils.log.info = lambda said: print(said.splitlines()[0])
sys.meta_path.insert(0, Looked())
utils.compilation_time_metrics["a frame"] = [1.0]
preload._log_compile_times()
utils.compilation_time_metrics.clear()
atexit._run_exitfuncs()
"""


@pytest.mark.slow
def test_how_long_torch_compiled_is_told_where_it_compiled_and_nothing_is_looked_for_otherwise() -> None:
    ran = subprocess.run([sys.executable, "-c", COMPILE_TIMES], capture_output=True, text=True, check=True, timeout=60)
    said = ran.stdout.splitlines()
    assert "TorchDynamo compilation metrics:" in said
    assert [line for line in said if line.startswith("looked")] in ([], ["looked for tabulate"])


STEPS = """
import resource
import workers.node.preload
faults = []
for _ in range(8):
    blocks = [b"x" * 2**20 for _ in range(16)]
    del blocks
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[-4])
"""


@pytest.mark.slow
def test_memory_that_a_step_has_freed_is_used_again_by_the_next_one() -> None:
    ran = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True, timeout=60)
    assert int(ran.stdout) < 300  # 4,096 pages a step, where each asks the kernel anew
