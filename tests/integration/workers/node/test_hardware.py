"""The node samples what its attempts' ranks take, and the report says what is wrong with that."""

import os
import textwrap

import pytest

from jobs.files import paths
from jobs.protocol import names
from jobs.protocol.hardware import NodeReading, decode_readings, decode_samples
from shardyard.contract.report import Finding, Report, decode_report
from tests.integration.workers.service import NODE, TENANT, Service, eventually

pytestmark = pytest.mark.integration

TRAIN = """
    import os, time
    import torch, torch.distributed as dist
    from torch.utils.data import DataLoader, Dataset

    WORLD = int(os.environ.get("WORLD_SIZE", "1"))
    if WORLD > 1:
        dist.init_process_group("gloo")
    net = torch.nn.Linear(5, 2)
    if WORLD > 1:
        net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    kept, done = [], 0
    while done < {steps}:
        for rows in {batches}:
            optimizer.zero_grad()
            net(rows).sum().backward()
            optimizer.step()
            done += 1
            {each_step}
            if done == {steps}:
                break
"""


def program(steps: int, *, batches: str = "[torch.ones(4, 5)]", each_step: str = "pass") -> str:
    return textwrap.dedent(TRAIN).format(steps=steps, batches=batches, each_step=each_step)


def report_of(service: Service, job: str) -> Report:
    return decode_report(paths.report_file(service.files(job)).read_bytes())


@pytest.mark.slow
def test_a_run_of_seconds_has_its_processor_time_and_memory(service: Service) -> None:
    job = service.run_script({"train.py": program(100_000, each_step="time.sleep(0.05)")})
    eventually(lambda: service.job(job).first_step, "its first step")
    attempt = service.attempt(job)
    key = names.hardware_key(TENANT, job, attempt.number)
    client = service.store.client

    def sampled() -> bool:
        body = client.get(key)
        return isinstance(body, bytes) and decode_samples(body).devices[0].samples >= 3

    eventually(sampled, "three samples are in the telemetry Redis")

    def read() -> list[NodeReading]:
        body = client.get(names.readings_key(NODE))
        return decode_readings(body) if isinstance(body, bytes) else []

    readings = eventually(read, "the node's readings are there")
    assert "resident_bytes" in readings[0].values
    service.cancel(job)
    service.ended(job)
    (device,) = report_of(service, job).hardware
    assert device.samples >= 3
    assert 10e6 < device.series["anonymous_bytes"].minimum <= device.series["resident_bytes"].maximum
    assert 0 < device.series["cpu_cores"].mean < 3
    stored = decode_samples(paths.hardware_file(service.files(job)).read_bytes())
    assert stored.devices[0].samples == device.samples
    eventually(lambda: not service.marks(attempt).hardware.exists(), "the node's file is gone")


#: A quarter of a MiB each step.
MAKES = "torch.ones(1 << 16); time.sleep(0.025)"
KEEPS = "kept.append(torch.ones(1 << 16)); time.sleep(0.025)"
ROWS = """
class Rows(Dataset):
    def __len__(self): return 4096
    def __getitem__(self, index):
        until = time.thread_time() + 0.004
        while time.thread_time() < until: pass
        return torch.ones(5)

torch.set_num_threads(1)
kept, done"""


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "strategy"), [(1, "single"), (2, "ddp"), (4, "ddp")])
@pytest.mark.parametrize(("each_step", "expected"), [(KEEPS, True), (MAKES, False)], ids=["keeps", "makes"])
def test_a_rank_that_keeps_a_tensor_of_each_step_is_found(
    service: Service, each_step: str, expected: bool, devices: int, strategy: str
) -> None:
    found = _found(service, program(1500, each_step=each_step), strategy, devices)
    assert ("memory-creep" in found) is expected, found
    if expected:
        assert found["memory-creep"].numbers["bytes_per_1000_steps"] == pytest.approx(250 * 2**20, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "expected"), [(6, True), (0, False)])
def test_loaders_that_compete_with_ranks_for_cores_are_found(service: Service, workers: int, expected: bool) -> None:
    cores = len(os.sched_getaffinity(0))
    batches = f"DataLoader(Rows(), batch_size=8, num_workers={workers * cores // 2})"
    text = program(600 * cores, batches=batches).replace("kept, done", ROWS, 1)
    found = _found(service, text, "ddp", 2)
    assert ("cpu-oversubscribed" in found) is expected, found


def _found(service: Service, text: str, strategy: str, devices: int) -> dict[str, Finding]:
    job = service.run_script({"train.py": text}, strategy=strategy, devices=devices)
    assert service.ended(job, 240).state == "succeeded", service.text(job)
    return {one.code: one for one in report_of(service, job).findings}
