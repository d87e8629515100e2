"""Scripts that train in processes of their own making: the report must see into all of them."""

from typing import Any

import pytest

from jobs.files import metric_file, paths
from jobs.model.state import JobState
from tests.integration.workers.service import Service

pytestmark = pytest.mark.integration

#: Trains on 50 rows in batches of 10, for two epochs: 25 rows for each of two ranks, so 10, 10 and 5.
TRAIN = """
import os, socket
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def train(rank, world, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(50, 4), torch.randint(0, 2, (50,)))
    sampler = DistributedSampler(data)
    model = DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, batch_size=10, sampler=sampler):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    dist.destroy_process_group()
"""

SPAWN = """
import torch.multiprocessing as mp
from train import free_port, train

if __name__ == "__main__":
    mp.spawn(train, args=(2, free_port()), nprocs=2)
"""

FORK = """
import multiprocessing, sys
from train import free_port, train

context, port = multiprocessing.get_context("fork"), free_port()
processes = [context.Process(target=train, args=(rank, 2, port)) for rank in range(2)]
for process in processes:
    process.start()
for process in processes:
    process.join()
sys.exit(max(process.exitcode for process in processes))
"""

#: One child leaves as a forked copy of the whole program would: by its end.
BARE_FORK = """
import os
from train import free_port, train

port = free_port()
child = os.fork()
train(0 if child else 1, 2, port)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""

RELAUNCH = """
import os, subprocess, sys
from train import train

if "RANK" in os.environ:
    train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_PORT"])
else:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    sys.exit(subprocess.call([*torchrun, __file__]))
"""

#: A launcher starts a program, which forks.
NESTED = """
import subprocess, sys

sys.exit(subprocess.call([sys.executable, "fork.py"]))
"""


def ended(service: Service, main: str, **files: str) -> dict[str, Any]:
    """The report of a script that has succeeded."""
    sources = {"main.py": main, "train.py": TRAIN} | {f"{name}.py": text for name, text in files.items()}
    job = service.run_script(sources, entrypoint="main.py", devices=2)
    record = service.ended(job, seconds=60)
    assert record.state is JobState.SUCCEEDED, service.text(job, stream="stderr")
    return service.report(job)


@pytest.mark.parametrize(
    ("main", "files"),
    [
        pytest.param(SPAWN, {}, marks=pytest.mark.slow, id="mp.spawn"),
        pytest.param(FORK, {}, id="multiprocessing fork"),
        pytest.param(BARE_FORK, {}, id="os.fork"),
        pytest.param(RELAUNCH, {}, marks=pytest.mark.slow, id="torchrun within"),
        pytest.param(NESTED, {"fork": FORK}, marks=pytest.mark.slow, id="nested"),
    ],
)
def test_each_process_of_a_group_is_a_device_with_the_rows_that_its_sampler_gave(
    service: Service, main: str, files: dict[str, str]
) -> None:
    report = ended(service, main, **files)
    patterns = {(tuple(pattern["rows"]), pattern["steps"]) for pattern in report["patterns"]}
    assert patterns == {((10, 10), 4), ((5, 5), 2)}
    assert [device["rows"] for device in report["per_device"]] == [50, 50]
    assert not {"no-work-done", "idle-devices", "fewer-processes"} & {one["code"] for one in report["findings"]}


def test_a_child_that_is_killed_has_told_what_it_did(service: Service) -> None:
    main = """
import multiprocessing, os, signal, time
import torch

def train():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).sum().backward()
        optimizer.step()
    time.sleep(1.5)
    os.kill(os.getpid(), signal.SIGKILL)

process = multiprocessing.get_context("fork").Process(target=train)
process.start()
process.join()
assert process.exitcode == -9
"""
    report = ended(service, main)
    assert [(pattern["rows"], pattern["steps"]) for pattern in report["patterns"]] == [([6, 0], 3)]


def test_workers_of_a_data_loader_are_not_taken_for_processes_that_train(service: Service) -> None:
    main = """
import torch
from torch.utils.data import DataLoader, Dataset

class Features(Dataset):
    extract = torch.nn.Linear(4, 4)

    def __len__(self):
        return 20

    def __getitem__(self, index):
        with torch.no_grad():
            return self.extract(torch.ones(1, 4))[0], index % 2

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(Features(), batch_size=5, num_workers=2):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
    report = ended(service, main)
    assert [(pattern["phase"], pattern["rows"], pattern["steps"]) for pattern in report["patterns"]] == [
        ("train", [5, 0], 4)
    ]


def test_what_a_child_in_an_environment_of_its_own_does_is_said_not_to_be_seen(service: Service) -> None:
    main = """
import subprocess, sys

busy = "import time; ends = time.process_time() + 1.5\\nwhile time.process_time() < ends: pass"
subprocess.run([sys.executable, "-c", busy], env={}, check=True)
"""
    report = ended(service, main)
    assert "no-work-done" in {one["code"] for one in report["findings"]}
    assert "an environment of their own" in report["notes"]["per_device"]


def test_what_forked_processes_log_belongs_to_their_devices(service: Service) -> None:
    logs = TRAIN.replace("    dist.destroy", "    job.log('done', rank)\n    dist.destroy").replace(
        "import os, socket", "import os, socket\nfrom shardyard import job"
    )
    job = service.run_script({"train.py": logs, "main.py": FORK}, entrypoint="main.py", devices=2)
    assert service.ended(job, seconds=60).state is JobState.SUCCEEDED
    series = metric_file.read_series(paths.metrics_file(service.files(job)))
    done = {(one.device, point.value) for one in series if one.name == "done" for point in one.points}
    assert done == {(-1, 0.0), (1, 1.0)}


def test_a_script_that_speaks_to_the_socket_itself_harms_nothing_but_its_own_report(service: Service) -> None:
    main = """
import os, random, socket, struct

def connect():
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["SHARDYARD_PROBE_SOCKET"])
    assert connection.recv(1) == b"+"
    return connection

def string(text):
    return b"\\xdb" + struct.pack(">I", len(text)) + text.encode()

def whole(number):
    return b"\\xd3" + struct.pack(">q", number)

def array(*parts):
    return b"\\xdc" + struct.pack(">H", len(parts)) + b"".join(parts)

def packet(*records):
    body = array(*records)
    return struct.pack(">I", len(body)) + body

HELLO = array(string("Hello"), whole(-1), whole(2**62), string("x" * 10_000), whole(2**62))
nil, number = b"\\xc0", b"\\xcb" + struct.pack(">d", float("nan"))
huge, least = whole(2**63 - 1), whole(-2**63)
records = [
    array(string("Group"), huge, huge, string("x" * 100_000)),
    array(string("Split"), least, string("train"), string("y" * 100_000), huge, *[array(huge)] * 2, *[array(nil)] * 2),
    array(string("Step"), huge, huge, string("train"), array(least), number, number),
    array(string("Step"), least, least, string("no phase"), array(), number, number),
    array(string("Metric"), huge, string("z" * 100_000), least, number, number),
    array(string("Progress"), huge, least),
    array(string("DeviceInfo"), huge, string("d" * 100_000), least),
    array(string("Note"), string("n" * 100_000), string("r" * 100_000)),
    array(string("Began"), least, string(""), number),
    array(string("Activity"), least, least, least, least),
    array(string("Loaded"), *[least] * 3, nil, nil, nil, string("s"), nil, nil, nil, b"\\xc3", b"\\xc3"),
    array(string("Outline"), least, huge, huge, least, least),
    array(string("Wrapped"), string("k" * 100_000), string(""), array(least)),
]
for record in records:
    connection = connect()
    connection.sendall(packet(HELLO, record))
    connection.close()
dice = random.Random(0)
for _ in range(200):
    connection = connect()
    try:
        connection.sendall(packet(HELLO))
        connection.sendall(dice.randbytes(dice.randrange(1, 4000)))
    except BrokenPipeError:
        pass
    connection.close()
print("done")
"""
    job = service.run_script({"main.py": main}, entrypoint="main.py", devices=2)
    record = service.ended(job, seconds=60)
    assert record.state is JobState.SUCCEEDED, service.text(job, stream="stderr")
    assert service.text(job) == "done"
    assert paths.report_file(service.files(job)).stat().st_size < 1_000_000
    assert len(service.report(job)["per_device"]) == 2
    after = service.run_script({"main.py": "print('next')"}, entrypoint="main.py")
    assert service.ended(after).state is JobState.SUCCEEDED
