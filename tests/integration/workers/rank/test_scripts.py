"""Users' own programs as jobs, beside the same programs under plain python and torchrun."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.model.state import JobState, StateReason
from tests.integration.workers.service import Service, eventually, is_dead
from workers.rank.process import INHERITED_VARIABLES

pytestmark = pytest.mark.integration

LOOK = (Path(__file__).parents[1] / "scripts" / "look.txt").read_text()
#: The sources of one bundle: the same program as a file, as a file in a directory, and as a module.
LOOKS = dict.fromkeys(("train.py", "src/train.py", "pkg/train.py"), LOOK) | {"pkg/__init__.py": ""}


def run_plain(
    directory: Path, files: dict[str, str], *command: str, python: Path = Path(sys.executable)
) -> subprocess.CompletedProcess[str]:
    """The same files under a Python of their own, with no more of an environment than a rank has."""
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    variables = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    return subprocess.run(
        [python, *command],
        cwd=directory,
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        preexec_fn=heed_ctrl_c,
    )


def heed_ctrl_c() -> None:
    """As in a terminal: a shell has what it starts in the background ignore it, and so these tests perhaps too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


# -- what a script sees ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entrypoint", "command"),
    [("train.py", ["train.py"]), ("src/train.py", ["src/train.py"]), ("pkg.train", ["-m", "pkg.train"])],
)
def test_a_script_sees_what_it_sees_under_python(
    service: Service, tmp_path: Path, entrypoint: str, command: list[str]
) -> None:
    plain = run_plain(tmp_path, LOOKS, *command, "--x", "1 2")
    job = service.run_script(LOOKS, "--x", "1 2", entrypoint=entrypoint)
    assert service.ended(job).state is JobState.SUCCEEDED
    _same(json.loads(service.text(job)), json.loads(plain.stdout))


def test_an_installed_module_runs_what_the_bundle_has(service: Service) -> None:
    files = {"train.py": "import os, sys; print(os.environ['WORLD_SIZE'], sys.argv[1:])"}
    job = service.run_script(files, "--standalone", "train.py", "--x", entrypoint="torch.distributed.run")
    assert service.ended(job).state is JobState.SUCCEEDED
    assert service.text(job).splitlines()[-1] == "1 ['--x']"


@pytest.mark.parametrize(
    ("entrypoint", "args", "words"),
    [
        (
            "torch.distributed.run",
            ("--standalone", "--nproc-per-node", "2", "child.py"),
            "child.py failed on rank 1 with exit code 1: ValueError: the cause",
        ),
        ("parent.py", (), "returned non-zero exit status 1: ValueError: the cause"),
    ],
)
def test_a_launcher_that_fails_of_a_child_names_it_with_its_traceback(
    service: Service, entrypoint: str, args: tuple[str, ...], words: str
) -> None:
    files = {
        "parent.py": "import subprocess, sys\nsubprocess.run([sys.executable, 'child.py'], check=True)",
        "child.py": "import os\nif os.environ.get('RANK') != '0': raise ValueError('the cause')",
    }
    error = service.ended(service.run_script(files, *args, entrypoint=entrypoint)).error
    assert error is not None
    assert error["message"].endswith(words)
    child, _, launcher = error["traceback"].partition("was started by the program")
    assert "child.py" in child
    assert child.count("ValueError: the cause") == 1
    assert "Error" in launcher


def test_a_script_starts_in_the_directory_that_is_asked_for(service: Service) -> None:
    files = {
        "mnist/main.py": "import near, os; print(open('../data/rows.txt').read(), os.path.basename(os.getcwd()))",
        "mnist/near.py": "",
        "data/rows.txt": "some rows",
    }
    job = service.run_script(files, entrypoint="main.py", workdir="mnist")
    assert service.ended(job).state is JobState.SUCCEEDED
    assert service.text(job) == "some rows mnist"


def test_what_a_script_does_with_its_process_comes_out_as_under_python(service: Service, tmp_path: Path) -> None:
    files = {"train.py": (Path(__file__).parents[1] / "scripts" / "do.txt").read_text()}
    plain = run_plain(tmp_path, files, "train.py", "--epochs", "3")
    job = service.run_script(files, "--epochs", "3")
    assert service.ended(job).state is JobState.SUCCEEDED
    assert service.text(job).splitlines() == plain.stdout.splitlines()


@pytest.mark.slow
def test_a_script_sees_what_it_sees_under_torchrun(service: Service, tmp_path: Path) -> None:
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"]
    plain = [json.loads(line) for line in run_plain(tmp_path, LOOKS, *command).stdout.splitlines()]
    job = service.run_script(LOOKS, strategy="ddp", devices=2)
    service.ended(job)
    for rank, theirs in enumerate(sorted(plain, key=lambda facts: str(facts["place"]))):
        theirs["torchrun"] = [name for name in theirs["torchrun"] if name not in OF_THE_LAUNCHER]
        _same(json.loads(service.text(job, rank)), theirs)


#: For the launcher's own dealings with its children, which are not ours.
OF_THE_LAUNCHER = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"}


def _same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    ours["threads"].remove("telemetry")
    # What torch._dynamo brings along, and what each process draws for itself.
    ours["warnings"] = [one for one in ours["warnings"] if "SymPy" not in one]
    assert ours.pop("seed") != theirs.pop("seed")
    # The source tree, where ours are installed from it, is not for programs.
    theirs["path"] = [
        entry for entry in theirs["path"] if not Path(entry, "workers", "runtime", "import_hook.py").exists()
    ]
    assert {name: (ours[name], theirs[name]) for name in theirs if ours[name] != theirs[name]} == {}


def test_ranks_that_set_no_seed_draw_numbers_of_their_own(service: Service) -> None:
    draws = "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.rand(1).item())"
    job = service.run_script({"train.py": draws}, strategy="ddp", devices=2)
    service.ended(job)
    drawn = [service.text(job, rank).split() for rank in range(2)]
    assert not set(drawn[0]) & set(drawn[1])


def test_arguments_variables_and_directories_of_a_script(service: Service) -> None:
    program = """
import os, sys, tempfile
from shardyard import job
print(sys.argv[1:], os.environ["WHERE"])
open("scratch", "w").write("thrown away")
open(os.path.join(os.environ["SHARDYARD_OUTPUT_DIR"], "model.pt"), "w").write("kept")
(job.output_dir() / "more.pt").write_text("kept too")
job.log("loss", 0.5)
print(tempfile.gettempdir())
"""
    job = service.run_script(
        {"train.py": program},
        "--local_rank={local_rank}",
        strategy="ddp",
        devices=2,
        env={"WHERE": "here {local_rank}"},
    )
    assert service.ended(job).state is JobState.SUCCEEDED
    for rank in range(2):
        printed, temporary = service.text(job, rank).splitlines()
        assert printed == f"['--local_rank={rank}'] here {{local_rank}}"
        assert len(temporary) < 40
        eventually(lambda path=Path(temporary): not path.exists(), "it is gone")  # type: ignore[misc]
    assert sorted(path.name for path in (service.files(job) / "artifacts").iterdir()) == ["model.pt", "more.pt"]


def test_modules_of_a_bundle_may_have_the_names_of_ours_and_of_loaded_ones(service: Service) -> None:
    names = ("jobs", "workers", "api", "tests", "redis", "celery", "queue")
    files = {f"{name}.py": "" for name in names} | {"workers/inner.py": ""}
    del files["workers.py"]
    program = f"""
import torch, importlib, os
for name in {names}:
    module = importlib.import_module(name)
    place = module.__file__ or module.__path__[0]
    assert place.startswith(os.getcwd()), (name, place)
import workers.inner
"""
    job = service.run_script(files | {"train.py": program})
    assert service.ended(job).state is JobState.SUCCEEDED, service.text(job, stream="stderr")


def test_a_recipe_takes_its_parts_from_a_bundle(service: Service) -> None:
    model = "import torch\nfrom jobs.width import width\nclass Net(torch.nn.Linear):\n"
    model += "    def __init__(self):\n        super().__init__(width, 2)\n"
    bundle = service.bundle({"jobs/net.py": model, "jobs/width.py": "width = 5"})
    job = service.run_recipe(bundle, {"ref": "jobs.net:Net"}, devices=2, strategy="ddp")
    record = service.ended(job)
    assert record.state is JobState.SUCCEEDED, record


# -- processes -------------------------------------------------------------------------------------

DEFINITIONS = """
import concurrent.futures, multiprocessing, os, pickle, subprocess, sys
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self): return 8
    def __getitem__(self, row): return row

class Lambdas(Rows):
    def __init__(self): self.double = lambda row: 2 * row
    def __getitem__(self, row): return self.double(row)

def total(rows, **options): return sum(int(batch.sum()) for batch in DataLoader(rows, 2, **options))
def square(number): return number * number
def say(rank, text): print(text, rank, flush=True)
"""
FORKS = """
if __name__ == "__main__":
    assert total(Lambdas(), num_workers=2) == 56
    assert pickle.loads(pickle.dumps(Rows())).__class__ is Rows
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
        assert list(pool.map(square, range(4))) == [0, 1, 4, 9]
    torch.multiprocessing.start_processes(say, ("forked",), nprocs=2, start_method="fork")
    subprocess.run([sys.executable, "-c", "print('child')"], check=True)
"""
SPAWNS = """
if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")
    assert total(Rows(), num_workers=1) == total(Rows(), num_workers=1, multiprocessing_context="forkserver") == 28
    with multiprocessing.Pool(1) as pool:
        assert pool.map(square, [3]) == [9]
    torch.multiprocessing.spawn(say, ("spawned",), nprocs=2)
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        (FORKS, ["child", "forked 0", "forked 1"]),
        pytest.param(SPAWNS, ["spawned 0", "spawned 1"], marks=pytest.mark.slow),
    ],
    ids=["fork", "spawn"],
)
def test_every_way_to_start_processes_works(service: Service, program: str, printed: list[str]) -> None:
    job = service.run_script({"train.py": DEFINITIONS + program})
    record = service.ended(job, 90)
    assert record.state is JobState.SUCCEEDED, service.text(job, stream="stderr")
    assert sorted(service.text(job).splitlines()) == printed


# -- ends ------------------------------------------------------------------------------------------

ENDS = {
    "": 0,
    "raise SystemExit": 0,
    "import sys; sys.exit(True)": 1,
    "import sys; sys.exit(256)": 0,
    "import sys; sys.exit(-1)": 255,
    "import sys; sys.exit('cannot go on')": 1,
    "import sys; sys.exit((1, 2))": 1,
    "import os; os._exit(0)": 0,
    "import os; os._exit(5)": 5,
    "import ctypes; ctypes.CDLL(None)._exit(0)": 0,
    "import ctypes; ctypes.CDLL(None).exit(6)": 6,
    "raise LookupError('on purpose')": 1,
    "1 +": 1,
    "raise OSError('no such file: \\udcff')": 1,
    "class Unprintable(Exception):\n    __str__ = None\nraise Unprintable": 1,
    "import sys; sys.stderr.close(); 1 / 0": 1,
    "import sys; sys.stdout = sys.stderr = None; 1 / 0": 1,
    "import sys; sys.excepthook = lambda *_: 1 / 0; 1 / 0": 1,
    "import nothing_of_the_kind": 1,
    "import os, signal; os.kill(os.getpid(), signal.SIGTERM)": -signal.SIGTERM,
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL,
    "import ctypes; ctypes.string_at(0)": -signal.SIGSEGV,
    "import os; os.killpg(0, 9)": -signal.SIGKILL,
    "import atexit, sys; atexit.register(lambda: 1 / 0)": 0,
    "import threading; threading.Thread(target=lambda: 1 / 0).start()": 0,
    "import argparse; argparse.ArgumentParser().parse_args(['--wrong'])": 2,
    "import os; os.closerange(3, 4096)": 0,
}


@pytest.mark.parametrize("program", ENDS)
def test_a_script_ends_as_it_does_under_python(service: Service, tmp_path: Path, program: str) -> None:
    expected = ENDS[program]
    # In a session of its own, or it would end this one.
    guard = "import os; os.setsid()\n" if "killpg" in program else ""
    plain = run_plain(tmp_path, {"train.py": guard + program}, "train.py")
    assert plain.returncode == expected
    record = service.ended(service.run_script({"train.py": program}))
    assert (record.state is JobState.SUCCEEDED) is (expected == 0), record
    if expected:
        assert record.error is not None
        ours = record.error["exit_code"] if expected > 0 else record.error["signal"]
        assert ours == (expected if expected > 0 else signal.Signals(-expected).name)


def test_a_traceback_is_pythons_own(service: Service, tmp_path: Path) -> None:
    files = {
        "train.py": "import helper\nprint('epoch 1', end=' ')\n\ndef main():\n    helper.fail()\n\nmain()\n",
        "helper.py": "def fail():\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n"
        "        raise LookupError('on purpose') from error\n",
    }
    plain = run_plain(tmp_path, files, "train.py")
    job = service.run_script(files)
    record = service.ended(job)
    root = str(service.marks(service.attempt(job)).work)
    printed = service.text(job, stream="stderr").replace(root, str(tmp_path))
    assert printed.splitlines() == plain.stderr.splitlines()
    assert next(line.text for line in service.lines(job)) == b"epoch 1 "  # the log ends with the traceback
    assert record.error is not None
    assert record.error["traceback"].replace(root, str(tmp_path)) == plain.stderr
    assert (record.reason, record.error["message"]) == (StateReason.CODE_ERROR, "LookupError: on purpose")


CHILD_FAILS = """
import torch.multiprocessing

def fail(rank):
    raise LookupError("in a child, on purpose")

torch.multiprocessing.start_processes(fail, nprocs=1, start_method="fork")
"""


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("if True\n    pass", "SyntaxError: expected ':'"),
        (CHILD_FAILS, "LookupError: in a child, on purpose"),
        ("import sys; sys.exit('cannot go on')", "cannot go on"),
        ("import argparse; argparse.ArgumentParser().parse_args(['--wrong'])", "unrecognized arguments: --wrong"),
    ],
)
def test_the_error_of_a_job_has_the_scripts_last_word(service: Service, program: str, words: str) -> None:
    record = service.ended(service.run_script({"train.py": program}))
    assert record.error is not None
    assert words in record.error["message"]


def test_a_module_that_is_not_there_is_named_with_what_to_do(service: Service) -> None:
    files = {"train.py": "import transformers_of_mine", "requirements.txt": "transformers_of_mine\n"}
    record = service.ended(service.run_script(files))
    assert record.error is not None
    assert record.error["message"] == "ModuleNotFoundError: No module named 'transformers_of_mine'"
    assert "SHARDYARD_ENVIRONMENTS" in record.error["advice"]


def test_the_first_rank_that_failed_is_named_and_not_the_ones_that_miss_it(service: Service) -> None:
    program = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
try:
    if dist.get_rank() == 1:
        raise LookupError("rank 1 fails on purpose")
    dist.all_reduce(torch.ones(1))
finally:
    dist.destroy_process_group()
"""
    record = service.ended(service.run_script({"train.py": program}, strategy="ddp", devices=2))
    assert record.error is not None
    assert (record.error["rank"], record.error["message"]) == (1, "LookupError: rank 1 fails on purpose")


def test_output_of_c_code_and_of_children_is_in_the_log(service: Service) -> None:
    program = """
import ctypes, os, subprocess
libc = ctypes.CDLL(None)
libc.puts(b"from C")
os.write(1, b"from a descriptor\\n")
subprocess.run(["echo", "from a child"])
if os.fork() == 0:
    print("from a fork")
    os._exit(0)
os.wait()
libc.perror(b"to stderr")
"""
    job = service.run_script({"train.py": program})
    service.ended(job)
    said = {"from C", "from a descriptor", "from a child", "from a fork"}
    assert set(service.text(job).splitlines()) == said
    assert service.text(job, stream="stderr").startswith("to stderr")


def test_a_script_without_a_handler_dies_of_sigterm_and_one_that_asks_is_told(service: Service) -> None:
    asks = """
import time
from shardyard import job
while not job.should_stop():
    print("at work", flush=True)
    time.sleep(0.01)
print("saved")
"""
    stays = "import time; print('at work', flush=True); time.sleep(3600)"
    for program, last in ((asks, "saved"), (stays, "at work")):
        job = service.run_script({"train.py": program})
        eventually(lambda job=job: service.job(job).state is JobState.RUNNING, "it runs")  # type: ignore[misc]
        log = service.files(job) / "logs" / "device-0.log"
        eventually(lambda log=log: log.exists() and log.stat().st_size > 0, "it prints")  # type: ignore[misc]
        service.cancel(job)
        assert service.ended(job).state is JobState.CANCELLED
        assert service.text(job).splitlines()[-1] == last


def test_grandchildren_that_hide_and_ignore_sigterm_are_gone_with_the_job(service: Service) -> None:
    program = """
import os, signal, sys, time
reader, writer = os.pipe()
for session in (False, True):
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if session:
            os.setsid()
            if os.fork():
                os._exit(0)
        print(os.getpid(), flush=True)
        os.write(writer, b".")
        time.sleep(3600)
os.read(reader, 1), os.read(reader, 1)
sys.exit(3)
"""
    job = service.run_script({"train.py": program})
    record = service.ended(job)
    assert record.error is not None
    assert record.error["exit_code"] == 3
    pids = [int(line) for line in service.text(job).splitlines()]
    assert len(pids) == 2
    assert all(is_dead(pid) for pid in pids)


def test_threads_that_go_on_after_the_script_are_waited_for(service: Service) -> None:
    program = """
import threading, time
print("the script is done")
threading.Thread(target=lambda: (time.sleep(0.5), print("the thread is done"))).start()
"""
    job = service.run_script({"train.py": program})
    assert service.ended(job).state is JobState.SUCCEEDED
    assert service.text(job).splitlines() == ["the script is done", "the thread is done"]


#: The tutorials' training loop and ending, with groups of its own making.
TUTORIAL = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

def main():
    dist.init_process_group("gloo")
    mesh, pair = init_device_mesh("cpu", (2,)), dist.new_group([0, 1])
    rows = TensorDataset(torch.randn(24, 20), torch.randn(24, 1))
    loader = DataLoader(rows, batch_size=4, sampler=DistributedSampler(rows))
    model = DistributedDataParallel(torch.nn.Linear(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for inputs, targets in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    dist.all_reduce(torch.ones(1), group=pair)
    if "--destroy" in sys.argv:
        dist.destroy_process_group()

main()
"""


@pytest.mark.parametrize("jobs", [8, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_the_ends_of_distributed_scripts_do_not_hang(service: Service, jobs: int) -> None:
    for _ in range(jobs // 4):
        running = [
            service.run_script({"train.py": TUTORIAL}, *end, strategy="ddp", devices=2)
            for end in ((), ("--destroy",), (), ("--destroy",))
        ]
        for job in running:
            record = service.ended(job, 60)
            assert record.state is JobState.SUCCEEDED, (record, service.text(job, stream="stderr"))
            said = [line.text for line in service.lines(job) if line.stream == "service"]
            assert not any(b"did not end" in text for text in said)


def test_what_a_killed_supervisor_leaves_is_cleared_away(service: Service) -> None:
    program = "import tempfile, time\nprint(tempfile.gettempdir(), flush=True)\ntime.sleep(3600)"
    job = service.run_script({"train.py": program})
    service.reaches(job, JobState.RUNNING)
    attempt = service.attempt(job)
    marks = service.marks(attempt)
    temporary = Path(marks.temporary.read_text())
    assert temporary.exists()
    os.kill(service.supervisor(attempt), signal.SIGKILL)
    eventually(lambda: not temporary.exists() and not marks.directory.exists(), "its directories are gone")
    service.cancel(job)
    service.ended(job)


def test_a_bundle_that_is_gone_or_broken_rejects_the_job(service: Service) -> None:
    for damage in (Path.unlink, lambda path: path.write_bytes(b"no zip")):
        program = f"print({damage!r})"
        bundle = service.bundle({"train.py": program})
        (path,) = (service.settings.storage / "bundles" / "default").glob(f"{bundle.removeprefix('sha256:')}.*")
        damage(path)
        record = service.ended(service.run_script({"train.py": program}))
        assert record.reason is StateReason.REJECTED_BY_WORKER
        assert record.message.startswith("program.bundle: ")
