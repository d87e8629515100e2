"""The script of `shardyard nodes --test`, with a process as each node."""

import json
import os
import subprocess
import sys

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from shardyard.cli.fleet.node_pairs import MARK as READ_MARK
from shardyard.script.node_pairs.measure_pairs import MARK

#: With a short time for each pair, since the one that cannot connect is waited for.
PROGRAM = (
    "from shardyard.script.node_pairs import measure_pairs\nmeasure_pairs.PAIR_SECONDS = 3\nmeasure_pairs.main()\n"
)


@pytest.mark.slow
def test_a_node_that_others_do_not_reach_fails_in_its_pairs_alone() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "OMP_NUM_THREADS": "1"}
    ranks = [_start_rank(rank, meeting | {"GLOO_SOCKET_IFNAME": "nosuch0" if rank == 2 else "lo"}) for rank in range(3)]
    try:
        printed = ranks[0].communicate(timeout=120)[0].decode()
        assert [process.wait(60) for process in ranks] == [0, 0, 0]
    finally:
        for process in ranks:
            process.kill()
            process.wait(10)
    assert MARK == READ_MARK
    lines = [line for line in printed.splitlines() if line.startswith(MARK)]
    pairs = {tuple(pair["ranks"]): pair for pair in (json.loads(line.removeprefix(MARK)) for line in lines)}
    assert list(pairs) == [(0, 1), (0, 2), (1, 2)]
    assert pairs[0, 1]["bytes_per_second"] > 0 < pairs[0, 1]["latency_ms"]
    assert all(pairs[pair]["error"] for pair in ((0, 2), (1, 2)))
    assert "error" not in pairs[0, 1]


def _start_rank(rank: int, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    env = os.environ | variables | {"RANK": str(rank), "CUDA_VISIBLE_DEVICES": ""}
    output = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
    return subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stdout=output, stderr=subprocess.DEVNULL)
