"""Explains common errors of users' scripts in one line: the cause on this node, and what to do.

A script that runs on its author's machine may fail on a node for reasons that its own error does not name: there is no
GPU, no network, no terminal, another port, another set of packages. `explain_error` recognises these errors by their
text, and those of training on several devices, whose rules are in `training_hints`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from workers.supervisor.ending.hint_rules import FailureContext, HintRule, apply_rule, make_rule
from workers.supervisor.ending.training_hints import NCCL_TIMEOUT, TRAINING_RULES, explain_gpu_memory

MAX_TEXT = 64 * 1024  # of a traceback; its end has the error
MAX_LINE = 2000


def explain_error(kind: str, message: str, traceback: str, facts: FailureContext) -> str:
    """One line for the user, or "" where there is nothing to add to the error itself.

    `message` is the error as the job shows it ("RuntimeError: ..."; for a script that refused its arguments, the last
    line that it printed). The chain of causes in `traceback` is searched after it, from the last to the first.
    `kind` is the outcome's: an `out_of_memory` that no rule matches still gets its line.
    """
    facts = replace(facts, traceback=traceback[-MAX_TEXT:])
    rules = RULES if facts.brings_code else TRAINING_RULES
    advice = _find_advice(rules, _error_lines(message, facts.traceback), facts)
    if not advice and kind == "out_of_memory":
        return explain_gpu_memory(facts) if facts.on_cuda else MAIN_MEMORY
    return advice


def explain_death(printed: str, facts: FailureContext) -> str:
    """The same for a rank that died without a report: what a library has printed before it ended the process may say
    why. Anything else that was printed may be a warning from any time."""
    lines = (line[:MAX_LINE] for line in reversed(printed[-MAX_TEXT:].splitlines()))
    return _find_advice((NCCL_TIMEOUT,), lines, facts)


def _find_advice(rules: Sequence[HintRule], lines: Iterator[str], facts: FailureContext) -> str:
    return next((advice for line in lines for rule in rules if (advice := apply_rule(rule, line, facts))), "")


def _error_lines(message: str, traceback: str) -> Iterator[str]:
    """The error, then the lines of its traceback that are not code, in reverse order."""
    yield message[:MAX_LINE]
    for line in reversed(traceback.splitlines()):
        if line and not line[0].isspace():
            yield line[:MAX_LINE]


# -- a GPU that is not there -----------------------------------------------------------------------

REHEARSE_OR_MOVE = 'rehearse it on virtual devices ("rehearse": true, --rehearse) or submit it to a pool with GPUs'


def _no_gpu(_: re.Match[str], facts: FailureContext) -> str:
    if facts.rehearsing:
        return "This part of the script calls CUDA directly, which cannot be rehearsed: submit it to a pool with GPUs."
    if facts.on_cuda:
        return (
            "PyTorch cannot use the GPUs that the job leases: its build has no CUDA, or the driver does not answer. "
            "The operator must repair the node, or list a Python environment with a CUDA build (program.python)."
        )
    return f"The script needs a GPU and this node has none: {REHEARSE_OR_MOVE}."


def _no_nccl(_: re.Match[str], facts: FailureContext) -> str:
    if facts.on_cuda:
        return "The PyTorch of this environment was built without NCCL: the operator must install one that has it."
    return (
        'The script names the backend "nccl", which needs GPUs, and this node has none: '
        f"{REHEARSE_OR_MOVE} (a rehearsal uses gloo instead)."
    )


def _ddp_device_ids(_: re.Match[str], facts: FailureContext) -> str:
    if facts.on_cuda:
        return "The script gives device_ids to DistributedDataParallel before it has moved its model to that GPU."
    return (
        "The script gives device_ids to DistributedDataParallel and its model is on the CPU, where device_ids must be "
        f"None: {REHEARSE_OR_MOVE}."
    )


def _no_accelerator(found: re.Match[str], facts: FailureContext) -> str:
    if facts.on_cuda or facts.rehearsing:
        return _no_gpu(found, facts)
    return f"FSDP needs a GPU and this node has none: {REHEARSE_OR_MOVE} (fully_shard also works on CPUs)."


def _no_devices(_: re.Match[str], facts: FailureContext) -> str:
    if facts.on_cuda or facts.rehearsing:
        return ""
    return (
        "The script divides by torch.cuda.device_count(), or by a number that comes from it, and that is 0 on this "
        f"node: {REHEARSE_OR_MOVE}."
    )


def _other_device(_: re.Match[str], facts: FailureContext) -> str:
    has = "one, device 0" if facts.devices == 1 else f"{facts.devices}, devices 0 to {facts.devices - 1}"
    return (
        f"The script names a GPU that this job does not have: it leases {has} (whatever their numbers on the node). "
        "Ask for more devices, or take the number from LOCAL_RANK."
    )


SHARED_GPU = (
    "Two ranks of the script use the same GPU: each must use the one with its own local rank number "
    '(torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))).'
)


def _checkpoint_of_gpu(_: re.Match[str], facts: FailureContext) -> str:
    if facts.on_cuda:
        return (
            f"The checkpoint was saved on a GPU that this job does not have (it leases {facts.devices}): "
            'torch.load(path, map_location="cpu") reads it anywhere.'
        )
    return (
        'The checkpoint was saved on a GPU and this node has none: torch.load(path, map_location="cpu") reads it '
        f"anywhere; without a change to the script, {REHEARSE_OR_MOVE}."
    )


def _half_precision(_: re.Match[str], facts: FailureContext) -> str:
    if facts.on_cuda:
        return ""
    return "The script computes in a half precision that CPUs lack for this operation: submit it to a pool with GPUs."


def _other_hardware(found: re.Match[str], facts: FailureContext) -> str:
    return (
        f"The script asks for a device of the kind {found['device'].lower()}, which this node does not have: let it "
        'take "cuda" or "cpu".'
    )


# -- memory and disk -------------------------------------------------------------------------------

MAIN_MEMORY = "The node's memory ran out: make the batch or the model smaller, or use fewer DataLoader workers."
SHARED_MEMORY = (
    "Shared memory (/dev/shm) ran out under the DataLoader's workers: use fewer workers or smaller batches, or ask the "
    "operator to enlarge it (in a container: shm_size)."
)
LOST_WORKER = (
    "A DataLoader worker was killed, for lack of memory or shared memory (/dev/shm), or by a crash in the data "
    "set. Use fewer workers (num_workers=0 shows an error of the data set itself), or ask the operator to enlarge "
    "them (in a container: shm_size)."
)
OPEN_FILES = (
    "Too many files are open: use fewer DataLoader workers, or "
    'torch.multiprocessing.set_sharing_strategy("file_system").'
)
#: What programs say where the disk is full; the last is torch's.
DISK_ERROR = r"No space left on device|Disk quota exceeded|unexpected pos \d+ vs \d+"
DISK_FULL = (
    "The disk is full: the script writes more than the node has room for (save fewer checkpoints), or the operator "
    "must make room."
)


def _not_writable(found: re.Match[str], facts: FailureContext) -> str:
    return (
        f"The job may not write to {found['path']}: write below the working directory (thrown away at the end) or to "
        "SHARDYARD_OUTPUT_DIR (kept as artifacts)."
    )


# -- files, packages and the network ---------------------------------------------------------------

UNREACHABLE = (
    "The script downloads something, and that address cannot be reached from the node: put the files into the bundle, "
    "or name a path that the node sees, and let the script read them from there."
)


def _no_network(_: re.Match[str], facts: FailureContext) -> str:
    if facts.network != "none":
        return UNREACHABLE
    return (
        f"Jobs of pool {facts.pool} have no network: bring the data in the bundle, or read them from the node's data "
        "directory (SHARDYARD_DATA_ROOT), or ask the operator for `shardyard pool set "
        f"{facts.pool} --network host`."
    )


NO_DATA = (
    "The data set is not where the script looks for it: put its files into the bundle, or name a path that the node "
    "sees. Relative paths start where the script starts (program.workdir)."
)


def _no_file(found: re.Match[str], facts: FailureContext) -> str:
    path = found["path"]
    if path.startswith("/"):
        return f"{path} does not exist on the node: put the file into the bundle, or name a path that the node sees."
    return (
        f"{path} was not there. If it is a file of yours, it was not packed, or the script starts in a "
        "different directory than it expects (shardyard submit --dry-run shows both; --include adds files)."
    )


def _no_program(found: re.Match[str], facts: FailureContext) -> str:
    return f"The script starts the program {found['path']}, which the node does not have: the operator must install it."


def _how_to_install(facts: FailureContext) -> str:
    """How a job gets a package: never by an install at its start."""
    if facts.requirements:
        return (
            "The bundle's requirements.txt is not installed by the job: the operator makes a Python environment from "
            "it and lists it (SHARDYARD_ENVIRONMENTS=name=/path/to/python), then the job names it in program.python "
            "(--python name)."
        )
    return (
        "If it is a package, the operator adds it to a Python environment and lists that one "
        "(SHARDYARD_ENVIRONMENTS=name=/path/to/python), and the job names it in program.python (--python name)."
    )


NEEDS_CUDA = {
    *("amp_C", "apex", "bitsandbytes", "causal_conv1d", "cupy", "deepspeed", "fbgemm_gpu", "flash_attn", "mamba_ssm"),
    *("nvidia", "pycuda", "tensorrt", "transformer_engine", "triton", "vllm", "xformers"),
}


def _no_module(found: re.Match[str], facts: FailureContext) -> str:
    name = found["name"]
    if name.split(".")[0] in NEEDS_CUDA and not facts.on_cuda:
        return f"{name} works on GPUs only: submit the script to a pool with GPUs. {_how_to_install(facts)}"
    return (
        f"The node's Python has no module {name}. If it is a file of yours, it was not packed "
        f"(shardyard submit --dry-run lists what is). {_how_to_install(facts)}"
    )


def _wants_package(found: re.Match[str], facts: FailureContext) -> str:
    return f"The script needs the package {found['name']}, or a newer one. {_how_to_install(facts)}"


NOT_A_MODULE = (
    "The script is a part of a package: name it as a module, as `python -m` does "
    '("entrypoint": "package.train" in place of "package/train.py").'
)
MORE_THAN_TENSORS = (
    "The file holds more than tensors, which torch.load refuses since PyTorch 2.6. If you trust the file, "
    "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 in program.env loads it without a change to the script."
)
NO_COMPILER = (
    "torch.compile needs a C++ compiler on the node (on GPUs: triton): the operator installs it, or "
    "TORCH_COMPILE_DISABLE=1 in program.env runs the script uncompiled."
)


# -- launchers and process groups ------------------------------------------------------------------

PORT_TAKEN = (
    "The script listens on a port that is already in use on this node. If it sets MASTER_PORT or an address like "
    'tcp://localhost:12355 itself, leave that out: under strategy "ddp" the job sets MASTER_ADDR and MASTER_PORT.'
)
NO_MASTER = (
    "No process listens at the address where the script looks for rank 0. If it sets MASTER_ADDR, MASTER_PORT or an "
    'address like tcp://10.0.0.1:23456 itself, leave that out: under strategy "ddp" the job sets MASTER_ADDR and '
    "MASTER_PORT."
)
LOST_PEER = "Another rank of this job ended first, and this one lost its connection to it: look at that rank's log."


def _take_ddp(facts: FailureContext) -> str:
    return (
        f'strategy "{facts.strategy}" starts one process without torchrun\'s variables: submit it with strategy '
        '"ddp" (or "fsdp"), one process per device'
    )


def _no_rendezvous(_: re.Match[str], facts: FailureContext) -> str:
    if facts.has_launcher_variables:
        return "The variable is missing in a process that the script started itself: pass os.environ on to it."
    return f"The script is written for torchrun, and {_take_ddp(facts)}."


def _no_group(_: re.Match[str], facts: FailureContext) -> str:
    if facts.has_launcher_variables:
        return "The script did not call torch.distributed.init_process_group() in this process, or has left the group."
    return (
        "The script uses a process group that it has not created. If it creates one only where torchrun's variables "
        f"are set: {_take_ddp(facts)}."
    )


def _too_few_ranks(_: re.Match[str], facts: FailureContext) -> str:
    if not facts.has_launcher_variables:
        return f"The script waits for more processes than there are: {_take_ddp(facts)}."
    return (
        f"The script waits for more processes than there are: this job starts {facts.devices}, one per device. Ask for "
        "as many devices as the script says, or let it take the number from WORLD_SIZE."
    )


def _local_rank_refused(found: re.Match[str], facts: FailureContext) -> str:
    return (
        f"The script does not know {found['option']}: scripts of the old launcher spell it --local_rank or "
        "--local-rank, and those that read the variable LOCAL_RANK need neither. Correct program.args."
    )


def _local_rank_wanted(found: re.Match[str], facts: FailureContext) -> str:
    return f'The script is written for the old launcher: add "{found["option"]}={{local_rank}}" to program.args.'


REFUSED_ARGUMENTS = (
    "The script refused its arguments: program.args (what follows -- on the command line) are passed on unchanged, "
    "one string each."
)

# -- terminals, keyboards and displays -------------------------------------------------------------

NO_TERMINAL = "The script asks for the size of a terminal, and a job has none: let it fall back to a fixed width (80)."
NO_KEYBOARD = "The script waits for input from a keyboard, and a job has none: pass the answer in program.args."
NO_DISPLAY = "The script opens a window, and a job has no display: for matplotlib, set MPLBACKEND=Agg in program.env."


# The first rule that matches gives the advice, so the narrower one of two comes first.
RULES = (
    *TRAINING_RULES,
    make_rule(r"DistributedDataParallel device_ids and output_device arguments only work with", _ddp_device_ids),
    make_rule(r"FSDP needs a non-CPU accelerator device", _no_accelerator),
    make_rule(
        r"Cannot access accelerator device when none is available", _no_accelerator, r"fully_sharded_data_parallel"
    ),
    make_rule(r"Distributed package doesn't have NCCL|ProcessGroupNCCL is only supported with GPUs", _no_nccl),
    make_rule(
        r"on a CUDA device but torch\.cuda\.is_available|on CUDA device \d+ but torch\.cuda\.device_count",
        _checkpoint_of_gpu,
    ),
    make_rule(r"integer (division or )?modulo by zero", _no_devices),
    make_rule(
        r"ZeroDivisionError: division by zero", _no_devices, r"device_count|n_?gpus?\b|num_gpus|nprocs|world_size"
    ),
    make_rule(r"invalid device ordinal|Invalid device id", _other_device),
    make_rule(r"Duplicate GPU detected", SHARED_GPU),
    make_rule(
        r"Torch not compiled with CUDA|PyTorch was compiled without CUDA|requires CUDA support"
        r"|module 'torch\._C' has no attribute '_(cuda|nccl|scatter|gather|broadcast_coalesced)"
        r"|Tried to instantiate dummy base class|Cannot get CUDA generator|Cannot access accelerator device"
        r"|device type at start of device string: None"
        r"|No CUDA GPUs are available|Found no NVIDIA driver|no CUDA-capable device|libcuda\.so|libcudart\.so",
        _no_gpu,
    ),
    make_rule(
        r"'NoneType' object has no attribute 'type'|got \(NoneType\)", _no_gpu, r"accelerator|backend_for_device"
    ),
    make_rule(
        r"\b([Nn]o|[Nn]eeds?|[Rr]equires?|[Ee]xpects?|at least|[Ss]ufficient)\b.{0,40}\b(GPUs?|gpus?)\b", _no_gpu
    ),
    make_rule(r"(Torch not compiled with|not linked with support for) (?P<device>\w+)", _other_hardware),
    make_rule(r"not implemented for '(Half|BFloat16)'", _half_precision),
    make_rule(r"DefaultCPUAllocator: can't allocate|^MemoryError|Cannot allocate memory", MAIN_MEMORY),
    make_rule(r"insufficient shared memory|Bus error|unable to (open|mmap|allocate) shared memory", SHARED_MEMORY),
    make_rule(r"DataLoader worker \(pid.*(exited unexpectedly|killed by signal)", LOST_WORKER),
    make_rule(r"Too many open files|received 0 items of ancdata", OPEN_FILES),
    make_rule(DISK_ERROR, DISK_FULL),
    make_rule(
        r"Name or service not known|Temporary failure in name resolution|[Ff]ailed to resolve|No address associated"
        r"|NameResolutionError|no internet connection|Network is unreachable|Max retries exceeded|<urlopen error"
        r"|ProxyError|Tunnel connection failed|[Cc]ouldn't connect to .https?:|Error downloading|OfflineModeIsEnabled"
        r"|Could not resolve host|Could not connect to the endpoint URL|Cannot connect to host"
        r"|LocalEntryNotFoundError|cannot find the (requested|appropriate) .*snapshot",
        _no_network,
    ),
    make_rule(r"Dataset not found", NO_DATA),
    make_rule(r"EADDRINUSE|[Aa]ddress already in use", PORT_TAKEN),
    make_rule(r"client socket has (timed out|failed)|DistNetworkError: Ping failed", NO_MASTER),
    make_rule(r"waiting for clients\. \d+/\d+ clients joined", _too_few_ranks),
    make_rule(r"environment variable (RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected", _no_rendezvous),
    make_rule(r"KeyError: '(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'", _no_rendezvous),
    make_rule(r"TypeError: int\(\) argument must be .*'NoneType'", _no_rendezvous, r"LOCAL_RANK|WORLD_SIZE|\bRANK\b"),
    make_rule(r"Default process group has not been initialized", _no_group),
    make_rule(r"Connection (reset|closed) by peer|failed to recv, got 0 bytes", LOST_PEER),
    make_rule(r"(unrecognized arguments:.*|No such option:? )(?P<option>--local[-_]rank)", _local_rank_refused),
    make_rule(r"arguments are required:.*(?P<option>--local[-_]rank)", _local_rank_wanted),
    make_rule(
        r"error: (unrecognized arguments|the following arguments are required|ambiguous option)"
        r"|error: argument .*(invalid|expected)|Error: No such option",
        REFUSED_ARGUMENTS,
    ),
    make_rule(r"No module named '?(?P<name>[\w.]+)", _no_module),
    make_rule(r"attempted relative import with no known parent package", NOT_A_MODULE),
    make_rule(r"(pip3? install (-U |--upgrade )?|Requirement )'?(?P<name>[\w\[\]-]+)", _wants_package),
    make_rule(r"FileNotFoundError: .*No such file or directory: '(?P<path>[^']+)'", _no_program, r"subprocess\.py"),
    make_rule(r"FileNotFoundError: .*No such file or directory: '(?P<path>[^']+)'", _no_file),
    make_rule(r"(Read-only file system|Permission denied): '(?P<path>[^']+)'", _not_writable),
    make_rule(r"Weights only load failed", MORE_THAN_TENSORS),
    make_rule(r"InvalidCxxCompiler|No working C\+\+ compiler|TritonMissing|working triton installation", NO_COMPILER),
    make_rule(r"IndexError: list index out of range|not enough values to unpack", NO_TERMINAL, r"stty size"),
    make_rule(r"Inappropriate ioctl for device|setupterm: could not find terminal", NO_TERMINAL),
    make_rule(r"EOFError: EOF when reading a line", NO_KEYBOARD),
    make_rule(r"no display name|couldn't connect to display|cannot connect to X server", NO_DISPLAY),
)
