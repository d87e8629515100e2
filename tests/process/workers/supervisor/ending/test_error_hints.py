"""The errors that scripts bring from another machine, raised for real, and what the user is told about each."""

import io
import re
import socket
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.samples.failing_scripts import CPU, Fail, Failure
from workers.supervisor.ending import error_hints
from workers.supervisor.ending.hint_rules import FailureContext

CPU_DDP = replace(CPU, strategy="ddp")
REHEARSAL = replace(CPU, rehearsing=True)
REQUIREMENTS = replace(CPU, requirements=True)
CUDA = replace(CPU, device_kind="cuda")

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU these lines work")

MODEL = "import torch\nmodel = torch.nn.Linear(3, 2)\n"

WANTS_A_GPU = {
    "set_device": "import torch\ntorch.cuda.set_device(0)",
    "module.cuda": MODEL + "model.cuda()",
    "tensor.cuda": "import torch\ntorch.zeros(2).cuda()",
    "a hard-coded device": MODEL + "model.to('cuda:7')",
    "a tensor made there": "import torch\ntorch.zeros(2, device='cuda')",
    "current_device": "import torch\ntorch.cuda.current_device()",
    "synchronize": "import torch\ntorch.cuda.synchronize()",
    "a stream": "import torch\ntorch.cuda.Stream()",
    "a graph": "import torch\ntorch.cuda.CUDAGraph()",
    "the device's name": "import torch\ntorch.cuda.get_device_name(0)",
    "statistics of memory": "import torch\ntorch.cuda.reset_peak_memory_stats()",
    "a generator": "import torch\ntorch.Generator(device='cuda')",
    "pinned memory": "import torch\ntorch.zeros(2).pin_memory()",
    "an old tensor type": "import torch\ntorch.cuda.FloatTensor(2)",
    "the device of a block": "import torch\nwith torch.cuda.device(1):\n    pass",
    "scatter": "import torch\ntorch.nn.parallel.scatter(torch.zeros(4, 2), [0, 1])",
    "the accelerator's name": (
        "import torch\nrank = 0\ntorch.device(f'{torch.accelerator.current_accelerator()}:{rank}')"
    ),
    "the accelerator's kind": "import torch\nprint(torch.accelerator.current_accelerator().type)",
    "the accelerator's backend": (
        "import torch\n"
        "device = torch.accelerator.current_accelerator()\n"
        "torch.distributed.get_default_backend_for_device(device)"
    ),
    "the accelerator's index": "import torch\ntorch.accelerator.set_device_index(0)",
    "a check of its own": "assert False, 'this script expects that two GPUs are available'",
    "the version of nccl": "import torch\ntorch.cuda.nccl.version()",
}


@without_cuda
@pytest.mark.parametrize("script", WANTS_A_GPU.values(), ids=WANTS_A_GPU.keys())
def test_a_script_that_needs_a_gpu_is_told_to_rehearse_or_to_take_another_pool(script: str, fail: Fail) -> None:
    failure = fail(script)
    said = failure.advice(CPU)
    assert said.startswith("The script needs a GPU and this node has none: ")
    assert "--rehearse" in said
    assert "pool with GPUs" in said
    rehearsed = failure.advice(REHEARSAL)
    assert "cannot be rehearsed" in rehearsed
    assert "--rehearse" not in rehearsed
    assert "build has no CUDA" in failure.advice(CUDA)


GROUP = "import torch.distributed as dist\n"

WRITTEN_FOR_GPUS = {
    "nccl": (
        GROUP + "dist.init_process_group('nccl', store=dist.HashStore(), rank=0, world_size=1)",
        'names the backend "nccl".*--rehearse.*pool with GPUs.*gloo',
    ),
    "ranks by modulo": (
        "import torch\nrank = 1\ndevice = rank % torch.cuda.device_count()",
        r"torch\.cuda\.device_count\(\).* is 0 on this node.*--rehearse",
    ),
    "ranks by a number": (
        "import torch\nn_gpu = torch.cuda.device_count()\ndef pick(rank):\n    return rank % n_gpu\npick(1)",
        r"torch\.cuda\.device_count\(\).* is 0 on this node",
    ),
    "workers by division": (
        "import torch\nworkers = 8 // torch.cuda.device_count()",
        r"torch\.cuda\.device_count\(\).* is 0 on this node",
    ),
    "batch by fraction": (
        "import torch\nbatch = 64 / torch.cuda.device_count()",
        r"torch\.cuda\.device_count\(\).* is 0 on this node",
    ),
    "another make": (
        "import torch\ntorch.zeros(2).to('xpu')",
        'kind xpu, which this node does not have.*"cuda" or "cpu"',
    ),
    "apple": (
        "import torch\ntorch.zeros(2).to('mps')",
        'kind mps, which this node does not have.*"cuda" or "cpu"',
    ),
}


@without_cuda
@pytest.mark.parametrize(("script", "words"), WRITTEN_FOR_GPUS.values(), ids=WRITTEN_FOR_GPUS.keys())
def test_other_traces_of_a_gpu_are_named_too(script: str, words: str, fail: Fail) -> None:
    assert re.search(words, fail(script).advice(CPU_DDP))


ONE_RANK = GROUP + "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel\n"

IN_A_GROUP = {
    "device_ids": (
        ONE_RANK + MODEL + "torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])",
        "device_ids to DistributedDataParallel and its model is on the CPU.*--rehearse",
    ),
    "fsdp": (
        ONE_RANK + MODEL + FSDP + "FullyShardedDataParallel(model)",
        "FSDP needs a GPU and this node has none.*--rehearse.*fully_shard",
    ),
    "fsdp on a device": (
        ONE_RANK + MODEL + FSDP + "FullyShardedDataParallel(model, device_id=0)",
        "FSDP needs a GPU and this node has none.*--rehearse.*fully_shard",
    ),
    "a mesh": (
        ONE_RANK
        + "import os\nos.environ['LOCAL_RANK'] = '0'\n"
        + "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cuda', (1,))",
        "needs a GPU and this node has none.*--rehearse",
    ),
}


@without_cuda
@pytest.mark.parametrize(("script", "words"), IN_A_GROUP.values(), ids=IN_A_GROUP.keys())
def test_a_wrapper_that_needs_a_gpu_is_told_so(script: str, words: str, fail: Fail) -> None:
    assert re.search(words, fail(script).advice(CPU_DDP))


NEEDS_TORCHRUN = {
    "the group": GROUP + "dist.init_process_group('gloo')",
    "the local rank": "import os\nrank = int(os.environ['LOCAL_RANK'])",
    "the world's size": "import os\nsize = int(os.getenv('WORLD_SIZE'))",
}


@pytest.mark.parametrize("script", NEEDS_TORCHRUN.values(), ids=NEEDS_TORCHRUN.keys())
def test_a_script_for_torchrun_under_single_is_told_to_take_ddp(script: str, fail: Fail) -> None:
    failure = fail(script)
    said = failure.advice(CPU)
    assert re.search('written for torchrun.*strategy "single" starts one process.*strategy "ddp"', said)
    assert "pass os.environ on" in failure.advice(CPU_DDP)


USES_A_GROUP = {
    "the rank": GROUP + "dist.get_rank()",
    "a reduction": "import torch\n" + GROUP + "dist.all_reduce(torch.zeros(1))",
    "ddp": MODEL + "torch.nn.parallel.DistributedDataParallel(model)",
    "a sampler": "import torch\ntorch.utils.data.DistributedSampler([1, 2])",
}


@pytest.mark.parametrize("script", USES_A_GROUP.values(), ids=USES_A_GROUP.keys())
def test_a_script_without_its_process_group_is_told_which_strategy_makes_one(script: str, fail: Fail) -> None:
    failure = fail(script)
    assert re.search('has not created.*strategy "ddp"', failure.advice(CPU))
    assert "did not call torch.distributed.init_process_group()" in failure.advice(CPU_DDP)


def test_a_port_that_the_script_names_itself_may_be_taken(fail: Fail) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        script = f"{GROUP}dist.init_process_group('gloo', init_method='tcp://{address}', rank=0, world_size=1)"
        said = fail(script).advice(CPU_DDP)
    assert re.search("listens on a port that is already in use.*MASTER_PORT.*leave that out", said)


def join(address: str, rank: int) -> str:
    """A script that waits 1 s for its one peer."""
    return (
        "import datetime\n"
        + GROUP
        + f"dist.init_process_group('gloo', init_method='tcp://{address}', rank={rank}, world_size=2,"
        + "timeout=datetime.timedelta(seconds=1))"
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "node0.invalid"])
def test_a_rank_that_looks_for_its_master_elsewhere_is_told_to_take_the_jobs(host: str, fail: Fail) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    said = fail(join(f"{host}:{port}", 1)).advice(CPU_DDP)
    assert re.search("No process listens.*MASTER_ADDR, MASTER_PORT.*leave that out", said)


def test_a_rank_that_waits_for_more_than_were_started_is_told_how_many_there_are(fail: Fail) -> None:
    failure = fail(join("127.0.0.1:0", 0))
    assert re.search('more processes than there are.*strategy "ddp"', failure.advice(CPU))
    assert re.search("more processes than there are: this job starts 2, one per device", failure.advice(CPU_DDP))


DOWNLOADS = {
    "urllib": "import urllib.request\nurllib.request.urlopen('http://data.invalid/x', timeout=5)",
    "requests": "import requests\nrequests.get('http://data.invalid/x', timeout=5)",
    "httpx": "import httpx\nhttpx.get('http://data.invalid/x', timeout=5)",
    "a socket": "import socket\nsocket.create_connection(('data.invalid', 80), 5)",
    "a closed port": "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9/x', timeout=5)",
    "weights": "import torch\ntorch.hub.load_state_dict_from_url('http://data.invalid/m.pth', model_dir='.')",
    "a cause": (
        "import urllib.request\n"
        "try:\n    urllib.request.urlopen('http://data.invalid/x', timeout=5)\n"
        "except OSError as error:\n    raise ValueError('the data set is not complete') from error"
    ),
}


@pytest.mark.parametrize("script", DOWNLOADS.values(), ids=DOWNLOADS.keys())
def test_a_download_that_cannot_work_is_told_to_bring_its_files(script: str, fail: Fail) -> None:
    assert re.search("downloads something.*cannot be reached.*into the bundle", fail(script).advice())


WITHOUT_NETWORK = replace(CPU, network="none", pool="a100")
#: As they fail in a network namespace that has nothing but its own loopback.
UNREACHABLE = {
    "a resolver": "import socket\nraise socket.gaierror(-3, 'Temporary failure in name resolution')",
    "an address": "raise OSError(101, 'Network is unreachable')",
    "a hub": (
        "class LocalEntryNotFoundError(Exception):\n    pass\n"
        "raise LocalEntryNotFoundError('cannot find the requested files in the local cache')"
    ),
    "git": "raise RuntimeError('fatal: unable to access: Could not resolve host: example.org')",
    "a bucket": "raise RuntimeError('Could not connect to the endpoint URL: https://s3.invalid')",
}


@pytest.mark.parametrize("script", (DOWNLOADS | UNREACHABLE).values(), ids=(DOWNLOADS | UNREACHABLE).keys())
def test_a_download_in_a_pool_without_network_is_told_of_the_pools_policy(script: str, fail: Fail) -> None:
    failure = fail(script)
    said = failure.advice(WITHOUT_NETWORK)
    assert re.search("Jobs of pool a100 have no network.*bundle.*SHARDYARD_DATA_ROOT.*operator", said)
    assert "`shardyard pool set a100 --network host`" in said
    assert "pool set" not in failure.advice()


def test_a_missing_module_is_a_matter_of_the_bundle_or_of_the_environment(fail: Fail) -> None:
    failure = fail("import torch_extras.layers")
    said = failure.advice(CPU)
    assert re.search("no module torch_extras.*not packed.*--dry-run.*SHARDYARD_ENVIRONMENTS.*program.python", said)
    brought = failure.advice(REQUIREMENTS)
    assert re.search(r"requirements\.txt is not installed.*SHARDYARD_ENVIRONMENTS=name=.*--python name", brought)


@pytest.mark.parametrize("name", ["bitsandbytes", "flash_attn.bert_padding", "triton", "apex"])
def test_a_missing_module_that_needs_cuda_is_told_to_go_where_gpus_are(name: str, fail: Fail) -> None:
    failure = fail(f"import {name}")
    said = failure.advice(CPU)
    assert re.search(f"{name.split('.')[0]} works on GPUs only.*pool with GPUs", said)
    assert "no module" in failure.advice(CUDA)


ELSEWHERE_BY_DESIGN = {
    "a sibling of a package": ("from . import model", 'as a module.*"package.train"'),
    "a data file": (
        "open('data/train.csv')",
        r"^data/train.csv was not there\. .* was not packed.*--dry-run shows both",
    ),
    "a path of another machine": ("open('/datasets/imagenet/x')", "^/datasets/imagenet/x does not exist on the node"),
    "a program": ("import subprocess\nsubprocess.run(['nvidia-smi-of-old'])", "the program nvidia-smi-of-old.*install"),
    "a place of the system": ("open('/sys/model.pt', 'w')", "may not write to /sys/model.pt.*SHARDYARD_OUTPUT_DIR"),
    "a full disk": ("open('/dev/full', 'w', 1).write('x\\n')", "^The disk is full"),
    "a full disk under torch.save": ("import torch\ntorch.save(torch.zeros(9999), '/dev/full')", "^The disk is full"),
    "too much memory": ("import torch\ntorch.empty(10**14)", "^The node's memory ran out"),
    "a file with objects": (
        "import pathlib, torch\ntorch.save(pathlib.Path('x'), 'x.pt')\ntorch.load('x.pt')",
        "more than tensors.*TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in program.env",
    ),
    "columns of a terminal": (
        "import os\nrows, columns = os.popen('stty size', 'r').read().split()",
        "size of a terminal, and a job has none",
    ),
    "width of a terminal": (
        "import os\nwidth = os.popen('stty size', 'r').read().split()[1]",
        "size of a terminal, and a job has none",
    ),
    "a question": ("input('epochs? ')", "a keyboard, and a job has none: pass the answer in program.args"),
    "get_terminal_size": ("import os\nos.get_terminal_size(0)", "size of a terminal, and a job has none"),
}


@pytest.mark.parametrize(("script", "words"), ELSEWHERE_BY_DESIGN.values(), ids=ELSEWHERE_BY_DESIGN.keys())
def test_what_a_job_does_not_have_is_named(script: str, words: str, fail: Fail) -> None:
    assert re.search(words, fail(script).advice())


def saved_on_cuda(path: Path) -> None:
    """A checkpoint as a GPU would have written it: only the name of the place differs."""
    plain = io.BytesIO()
    torch.save({"weight": torch.arange(3.0)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            place, other = b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:5"
            target.writestr(name, source.read(name).replace(place, other))


@without_cuda
def test_a_checkpoint_of_a_gpu_is_told_about_map_location(fail: Fail, tmp_path: Path) -> None:
    saved_on_cuda(tmp_path / "model.pt")
    said = fail("import torch\ntorch.load('model.pt')").advice()
    assert re.search('saved on a GPU and this node has none.*map_location="cpu"', said)


DYING_WORKER = """
import os, signal
from torch.utils.data import DataLoader, Dataset
class Data(Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIG{})
for batch in DataLoader(Data(), num_workers=1):
    pass
"""


@pytest.mark.parametrize("signal", ["KILL", "BUS"])
def test_a_killed_worker_of_a_loader_is_a_matter_of_memory(signal: str, fail: Fail) -> None:
    said = fail(DYING_WORKER.format(signal)).advice()
    assert re.search(r"DataLoader worker was killed.*memory.*/dev/shm.*shm_size", said)


PARSER = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs', type=int)\n"
OLD_PARSER = PARSER + "parser.add_argument('--local_rank', type=int, required=True)\n"

REFUSED = {
    "an option it lacks": (PARSER + "parser.parse_args(['--epoch-count', '3'])", "refused its arguments: program.args"),
    "a word for a number": (PARSER + "parser.parse_args(['--epochs', 'three'])", "refused its arguments: program.args"),
    "an option without its value": (PARSER + "parser.parse_args(['--epochs'])", "refused its arguments: program.args"),
    "the launcher's option": (
        PARSER + "parser.parse_args(['--local-rank=0'])",
        "does not know --local-rank: .*spell it --local_rank",
    ),
    "the launcher's option left out": (OLD_PARSER + "parser.parse_args([])", 'add "--local_rank={local_rank}" to'),
}


@pytest.mark.parametrize(("script", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_arguments_are_explained_from_the_last_line_printed(script: str, words: str, fail: Fail) -> None:
    assert re.search(words, error_hints.explain_error("code_error", fail(script).last_line, "", CPU_DDP))


# Without a GPU, or without the package, these cannot be raised: the words are those of torch and of the package.
REPORTED: dict[str, tuple[str, FailureContext, str]] = {
    "an index beyond the lease": (
        "torch.AcceleratorError: CUDA error: invalid device ordinal",
        CUDA,
        "leases 2, devices 0 to 1.*LOCAL_RANK",
    ),
    "the only device": (
        "AssertionError: Invalid device id",
        replace(CUDA, devices=1),
        "leases one, device 0",
    ),
    "two ranks on one device": (
        "DistBackendError: NCCL error: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        CUDA,
        "Two ranks .* same GPU.*LOCAL_RANK",
    ),
    "memory of a device": (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15.77 GiB",
        CUDA,
        "^The GPU's memory ran out: make the batch smaller",
    ),
    "a driver that does not answer": (
        "RuntimeError: Found no NVIDIA driver on your system.",
        CUDA,
        "operator must repair the node",
    ),
    "shared memory": (
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that",
        CPU,
        "^Shared memory",
    ),
    "torchvision": ("RuntimeError: Error downloading train-images-idx3-ubyte.gz:", CPU, "downloads something"),
    "torchvision, told not to": (
        "RuntimeError: Dataset not found. You can use download=True to download it",
        CPU,
        "put its files into the bundle",
    ),
    "transformers": (
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in",
        CPU,
        "downloads something",
    ),
    "a hint to install": (
        "ImportError: Using the `Trainer` requires `accelerate>=1.1.0`: Please run `pip install accelerate`",
        REQUIREMENTS,
        "needs the package accelerate.*requirements.txt is not installed",
    ),
    "lightning's requirements": (
        "ModuleNotFoundError: Requirement 'jsonargparse[signatures]>=4.27.7' not met. HINT: Try running `pip install",
        CPU,
        r"needs the package jsonargparse\[signatures\], or a newer one",
    ),
    "lightning without a gpu": (
        "MisconfigurationException: No supported gpu backend found!",
        CPU,
        "needs a GPU and this node has none",
    ),
    "a lost peer": (
        "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:47301",
        CPU_DDP,
        "Another rank of this job ended first",
    ),
    "compiling": (
        "InductorError: InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None,)",
        CPU,
        "C.. compiler on the node.*TORCH_COMPILE_DISABLE",
    ),
    "half precision": (
        """RuntimeError: "slow_conv2d_cpu" not implemented for 'Half'""",
        CPU,
        "half precision that CPUs lack",
    ),
    "a window": ("TclError: no display name and no $DISPLAY environment variable", CPU, "MPLBACKEND=Agg"),
    "open files": ("OSError: [Errno 24] Too many open files", CPU, "fewer DataLoader workers"),
}


@pytest.mark.parametrize(("message", "facts", "words"), REPORTED.values(), ids=REPORTED.keys())
def test_reported_errors_are_recognised(message: str, facts: FailureContext, words: str) -> None:
    assert re.search(words, error_hints.explain_error("code_error", message, "", facts))


def test_the_error_in_a_process_that_the_script_spawned_is_the_one_explained() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 9, in <module>\n    mp.spawn(main, nprocs=2)\n'
        "torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
        "-- Process 1 terminated with the following error:\n"
        "Traceback (most recent call last):\n"
        '  File "train.py", line 4, in main\n    import torch_extras\n'
        "ModuleNotFoundError: No module named 'torch_extras'\n"
    )
    message = "ProcessRaisedException: -- Process 1 terminated with the following error:"
    assert "no module torch_extras" in Failure(message, trace, "").advice()


SILENT = {
    "an ordinary error": "ValueError: the loss is not a number",
    "an ordinary index": "IndexError: list index out of range",
    "an ordinary division": "ZeroDivisionError: division by zero",
    "an exit": "sys.exit(3)",
    "nothing": "",
}


@pytest.mark.parametrize("message", SILENT.values(), ids=SILENT.keys())
def test_there_is_no_advice_on_what_is_not_known(message: str) -> None:
    assert error_hints.explain_error("code_error", message, 'Traceback:\n  File "train.py", line 3\n', CPU) == ""


def test_a_program_out_of_memory_gets_its_line_whatever_its_words() -> None:
    assert "The node's memory" in error_hints.explain_error("out_of_memory", "MemoryError", "", CPU)
    assert "The GPU's memory" in error_hints.explain_error("out_of_memory", "out of memory", "", CUDA)


def test_a_very_long_error_is_read_in_no_time() -> None:
    flood = "RuntimeError: " + "error: argument " * 100_000
    assert error_hints.explain_error("code_error", flood, flood + "\n" + "x\n" * 1_000_000, CPU) == ""
