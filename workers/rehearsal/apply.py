"""All replacements of a rehearsal in torch, in their order. Imported once torch has been imported."""

from workers.rehearsal import cuda, data_parallel, distributed, precision, refusals, tensors
from workers.rehearsal.devices import VirtualDevices


def replace_all(count: int, where: str) -> None:
    """Have torch answer as if it had `count` devices. `where` names this process in messages."""
    devices = VirtualDevices(count, where)
    tensors.replace_device_arguments(devices)
    cuda.replace_cuda_api(devices)
    precision.replace_autocast(devices)
    data_parallel.replace_data_parallel(devices)
    distributed.replace_distributed(devices)
    refusals.refuse_gpu_features(devices)
