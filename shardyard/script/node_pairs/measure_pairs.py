"""Measures the connections between nodes, pair by pair: the script that `shardyard nodes --test` submits.

It runs with one rank on each node. All pairs take their turn, so that none disturbs another. Only the store of the
rendezvous connects all ranks: where two nodes do not reach each other, the other pairs are measured all the same.
Rank 0 prints a line for each pair, `MARK` and an object as JSON.
"""

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import combinations
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

MARK = "node-pair "
#: For two ranks to connect, and for each of their calls.
PAIR_SECONDS = 15
#: For what one rank waits until both of a pair are done.
DONE_SECONDS = 6 * PAIR_SECONDS
WARM_UPS, SMALL_CALLS, LARGE_CALLS = 5, 50, 5
LARGE_BYTES = 16 * 1024 * 1024
MAX_WORDS = 300


def measure_all(store: Store, rank: int, world: int) -> None:
    """Measure each pair that this rank is in, and wait while others measure theirs."""
    for pair in combinations(range(world), 2):
        key = f"pair-{pair[0]}-{pair[1]}"
        if rank in pair:
            store.set(f"{key}-of-{rank}", json.dumps(_try_pair(PrefixStore(key, store), pair.index(rank))))
        keys = [f"{key}-of-{one}" for one in pair]
        store.wait(keys, timedelta(seconds=DONE_SECONDS))
        if rank == 0:
            found = _join_sides(*(json.loads(store.get(one)) for one in keys))
            print(MARK + json.dumps({"ranks": pair} | found), flush=True)


def _try_pair(store: Store, side: int) -> dict[str, Any]:
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    try:
        dist.init_process_group(backend, store=store, rank=side, world_size=2, timeout=timedelta(seconds=PAIR_SECONDS))
        try:
            return {"backend": backend} | _measure_pair("cuda" if backend == "nccl" else "cpu")
        finally:
            dist.destroy_process_group()
    except RuntimeError as error:  # of torch.distributed: they do not connect, or a call has taken too long
        return {"backend": backend, "error": (str(error).strip() or type(error).__name__).splitlines()[0][:MAX_WORDS]}


def _measure_pair(device: str) -> dict[str, float]:
    small = torch.ones(1, device=device)
    large = torch.ones(LARGE_BYTES // 4, device=device)
    for tensor in (small, large):
        for _ in range(WARM_UPS):
            dist.all_reduce(tensor)
    return {
        "latency_ms": 1000 * median(_time_calls(lambda: _reduce(small), SMALL_CALLS)),
        "bytes_per_second": LARGE_BYTES / median(_time_calls(lambda: _reduce(large), LARGE_CALLS)),
    }


def _reduce(tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor)
    if tensor.is_cuda:
        torch.cuda.synchronize()


def _time_calls(call: Callable[[], None], count: int) -> list[float]:
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return seconds


def _join_sides(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """What both sides found: the slower of the two numbers, or why one of them failed."""
    failed = next((side for side in (one, other) if "error" in side), None)
    if failed is not None:
        return failed
    return one | {
        "latency_ms": round(max(one["latency_ms"], other["latency_ms"]), 4),
        "bytes_per_second": round(min(one["bytes_per_second"], other["bytes_per_second"])),
    }


def main() -> None:
    os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # a call of NCCL that takes too long raises, and ends no process
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    limit = timedelta(seconds=DONE_SECONDS)
    measure_all(TCPStore(address, port, is_master=False, timeout=limit, wait_for_workers=False), rank, world)


if __name__ == "__main__":
    main()
