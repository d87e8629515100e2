"""Process groups, and what is built on them: gloo takes the place of NCCL, and modules stay on the CPU.

`dist.get_backend()` is "gloo". torch's own code sees that there is no NCCL; to programs it appears to be available.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from workers.rehearsal.devices import CPU
from workers.rehearsal.patching import Function, wrap_attribute
from workers.runtime.import_callbacks import when_imported

FSDP = "torch.distributed.fsdp.fully_sharded_data_parallel"
#: Arguments that only NCCL takes.
NCCL_ONLY = ("device_id", "pg_options")


def replace_distributed() -> None:
    for name, making in FUNCTIONS.items():
        wrap_attribute(distributed_c10d, name, making)
        if hasattr(dist, name):
            setattr(dist, name, getattr(distributed_c10d, name))
    dist.is_nccl_available = lambda: True  # only by this name: torch's own code looks elsewhere
    wrap_attribute(DistributedDataParallel, "__init__", _wrap_ddp_init)
    # It only refuses modules that are on the CPU and have a SyncBatchNorm.
    wrap_attribute(
        DistributedDataParallel, "_passing_sync_batchnorm_handle", lambda original: lambda self, module: None
    )
    wrap_attribute(DeviceMesh, "__init__", _wrap_mesh_init)
    wrap_attribute(nn.SyncBatchNorm, "forward", _wrap_sync_batch_norm)
    when_imported({FSDP: lambda module: wrap_attribute(module.FullyShardedDataParallel, "__init__", _wrap_fsdp_init)})


def gloo_for(backend: Any) -> Any:
    """ "nccl" and "cuda:nccl,cpu:gloo" -> "gloo"; what is not about CUDA stays."""
    if backend is None:
        return "gloo"
    name = str(backend).lower()
    return "gloo" if "nccl" in name or "cuda" in name else backend


def _wrap_init_process_group(original: Function) -> Function:
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        for name in NCCL_ONLY:
            kwargs.pop(name, None)
        return original(gloo_for(backend), *args, **kwargs)

    return init_process_group


def _wrap_new_group(original: Function) -> Function:
    def new_group(
        ranks: Any = None, timeout: Any = None, backend: Any = None, pg_options: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        kwargs.pop("device_id", None)
        return original(ranks, timeout, backend and gloo_for(backend), None, *args, **kwargs)

    return new_group


def _wrap_barrier(original: Function) -> Function:
    def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        return original(group, async_op)

    return barrier


def _wrap_all_gather(original: Function) -> Function:
    return _with_shapes(original, lambda output, values: (_shaped_like(output, values), values))


def _wrap_reduce_scatter(original: Function) -> Function:
    return _with_shapes(original, lambda output, values: (output, _shaped_like(values, output)))


def _with_shapes(original: Function, shape: Callable[[torch.Tensor, torch.Tensor], Any]) -> Function:
    """NCCL looks at numbers alone; gloo wants the whole in the shape of its parts, and no parameter among them."""
    names = tuple(inspect.signature(original).parameters)[:2]

    def call(*args: Any, **kwargs: Any) -> Any:
        output, values = (kwargs.pop(name) if name in kwargs else args[index] for index, name in enumerate(names))
        return original(*shape(output.detach(), values.detach()), *args[2:], **kwargs)

    return call


def _shaped_like(whole: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    is_flat = whole.dim() == 1 and part.dim() > 1
    return whole.view(-1, *part.shape[1:]) if is_flat else whole


#: Functions of torch.distributed, with what makes those that take their places. Two have two names each.
FUNCTIONS: dict[str, Callable[[Function], Function]] = {
    "init_process_group": _wrap_init_process_group,
    "new_group": _wrap_new_group,
    "barrier": _wrap_barrier,
    "all_gather_into_tensor": _wrap_all_gather,
    "all_gather_single": _wrap_all_gather,
    "reduce_scatter_tensor": _wrap_reduce_scatter,
    "reduce_scatter_single": _wrap_reduce_scatter,
}


# -- modules ---------------------------------------------------------------------------------------


def _wrap_ddp_init(original: Function) -> Function:
    def init(
        self: Any, module: nn.Module, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any
    ) -> None:
        original(self, module, None, None, *args, **kw)

    return init


def _wrap_fsdp_init(original: Function) -> Function:
    """torch shards on the CPU where it is named outright; a device found by itself must be an accelerator."""

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["device_id"] = CPU
        original(self, *args, **kwargs)

    return init


def _wrap_mesh_init(original: Function) -> Function:
    def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
        original(self, "cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    return init


def _wrap_sync_batch_norm(original: Function) -> Function:
    """torch's own has kernels for GPUs only. This computes the same, with gradients, from sums over all ranks."""

    def forward(self: Any, values: torch.Tensor) -> Any:
        is_alone = not (dist.is_available() and dist.is_initialized()) or dist.get_world_size(self.process_group) == 1
        if not self.training or is_alone:
            return original(self, values)
        self._check_input_dim(values)
        self._check_non_zero_input_channels(values)
        return _normalise_over_ranks(self, values)

    return forward


def _normalise_over_ranks(layer: Any, given: torch.Tensor) -> Any:
    """As the kernels for GPUs do, activations of 16 bits have statistics of 32, and their own type afterwards."""
    values = given.float() if given.dtype in (torch.float16, torch.bfloat16) else given
    dims = [dim for dim in range(values.dim()) if dim != 1]
    rows = values.new_tensor([values.numel() / values.size(1)])
    local = torch.cat([values.sum(dims), values.square().sum(dims), rows])
    total = _SumOverRanks.apply(layer.process_group, local)  # type: ignore[no-untyped-call]
    sums, squares = total[:-1].chunk(2)
    count = total[-1].detach()
    mean = sums / count
    variance = (squares / count - mean.square()).clamp(min=0)
    _update_statistics(layer, mean.detach(), variance.detach(), count)
    shape = [1, -1, *[1] * (values.dim() - 2)]
    normalised = (values - mean.view(shape)) * torch.rsqrt(variance + layer.eps).view(shape)
    if layer.affine:
        normalised = normalised * layer.weight.view(shape) + layer.bias.view(shape)
    return normalised.to(given.dtype)


class _SumOverRanks(torch.autograd.Function):
    """Every rank gets the sum; so the gradient of what a rank put in is the sum of the gradients of all."""

    @staticmethod
    def forward(ctx: Any, group: Any, local: torch.Tensor) -> torch.Tensor:
        ctx.group = group
        return _sum_over_ranks(local, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, _sum_over_ranks(gradients[0], ctx.group)


def _sum_over_ranks(values: torch.Tensor, group: Any) -> torch.Tensor:
    total = values.clone()
    dist.all_reduce(total, group=group)
    return total


def _update_statistics(layer: Any, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
    if not layer.track_running_stats:
        return
    layer.num_batches_tracked.add_(1)
    factor = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
    with torch.no_grad():
        layer.running_mean.lerp_(mean.to(layer.running_mean.dtype), factor)
        layer.running_var.lerp_((variance * count / (count - 1)).to(layer.running_var.dtype), factor)
