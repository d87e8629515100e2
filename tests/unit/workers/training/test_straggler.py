"""A device that is slow on purpose: whose it is, and where it may be."""

from typing import Any

import pytest

from tests.support.training_runs import VECTORS, Kept, spec_of
from workers.runtime.context import RankContext, RankDevice, RejectedByWorker
from workers.training import straggler, strategies


def context(kind: Any, devices: int) -> RankContext:
    owned = tuple(RankDevice(index, kind, f"{kind}:{index}") for index in range(devices))
    return RankContext(0, 1, owned, devices, 1, Kept())


def slow(where: str, **who: int) -> dict[str, Any]:
    return {**VECTORS, "straggler": {**who, "where": where, "milliseconds": 5}}


def test_only_the_rank_that_has_the_device_has_the_straggler() -> None:
    spec = spec_of(slow("forward", rank=1), devices=2, strategy="ddp")
    first, second = (RankContext(rank, 2, (RankDevice(rank, "cpu", f"cpu:{rank}"),), 2, 1, Kept()) for rank in range(2))
    assert straggler.find_straggler(spec, first) is None
    assert straggler.find_straggler(spec, second) == straggler.PlantedSlowness(1, "forward", 0.005)


def test_one_gpu_alone_cannot_wait_for_its_shard_under_dp() -> None:
    spec = spec_of(slow("input", device=1), devices=3, strategy="dp")
    assert strategies._find_straggler(spec, context("cpu", 3)) is not None
    with pytest.raises(RejectedByWorker, match=r'program\.straggler\.where: on cuda.*use "forward"'):
        strategies._find_straggler(spec, context("cuda", 3))
