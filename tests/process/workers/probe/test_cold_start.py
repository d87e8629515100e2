"""A probe that is installed before torch is there, as in a start with another Python environment."""

import json
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch import nn

from jobs.protocol.records import DeviceInfo
from tests.support.probe_runs import Seen, learn, watched
from tests.unit.workers.probe.test_loops import network
from workers.runtime.import_callbacks import when_imported

COLD = """
import json, sys
from workers.runtime.context import RankDevice, RankContext
from workers.probe import probe as script

class Kept(list):
    emit = list.append

records = Kept()
probe = script.install(RankContext(0, 1, (RankDevice(0, "cpu", "cpu:0"),), 1, 1, records), rehearsed=False)
early = [name for name in ("torch", "numpy", "pydantic", "structlog") if name in sys.modules]
import torch
net = torch.nn.Linear(5, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for x in torch.randn(12, 5).split(4):
    net(x).sum().backward()
    optimizer.step()
probe.finish()
import inspect
print(json.dumps({
    "early": early,
    "rows": [record.rows for record in records if type(record).__name__ == "BatchSplit"],
    "steps": sum(type(record).__name__ == "Step" for record in records),
    "loader": type(torch.__spec__.loader).__name__,
    "source": inspect.getsourcefile(torch.nn.Linear).endswith("linear.py"),
}))
"""


def test_a_cold_start_imports_torch_no_earlier_and_misses_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == {
        "early": [],
        "rows": [[4]],
        "steps": 3,
        "loader": "SourceFileLoader",
        "source": True,
    }


def test_what_is_imported_already_is_called_back_at_once() -> None:
    called: list[str] = []
    finder = when_imported({"torch": lambda module: called.append(module.__name__)})
    sys.meta_path.remove(finder)
    assert called == ["torch"]


def from_threads() -> None:
    net = network()

    def work() -> None:
        with torch.no_grad():
            for _ in range(10):
                net(torch.ones(3, 5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_forwards_of_several_threads_are_all_counted() -> None:
    assert watched(from_threads).rows("eval") == [[(3,)]] * 40


def in_a_child() -> int:
    """Fork, train in both, and tell how many records the child left in its copy of the sink."""
    import os

    net: nn.Module = network()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    reading, writing = os.pipe()
    if os.fork() == 0:
        sink: Any = _sink()
        before = len(sink.records)
        learn(optimizer, net(torch.ones(4, 5)).sum())
        os.write(writing, bytes([len(sink.records) - before]))
        os._exit(0)
    learn(optimizer, net(torch.ones(4, 5)).sum())
    os.wait()
    return os.read(reading, 1)[0]


def _sink() -> Seen:
    import gc

    return next(each for each in gc.get_objects() if isinstance(each, Seen))


def test_a_forked_child_is_silent_and_its_parent_goes_on() -> None:
    seen = watched(in_a_child)
    assert seen.result == 0
    assert seen.rows() == [[(4,)]]


def idle() -> None:
    network()


@pytest.mark.parametrize("devices", [1, 3])
def test_devices_are_described_without_being_touched(devices: int) -> None:
    assert [each.device for each in watched(idle, devices=devices).of(DeviceInfo)] == list(range(devices))
