"""A job over hosts whose ranks are in full boxes: what they have of their hosts is the network, and nothing else."""

import ast

import pytest

from jobs.model.pool_policy import PoolPolicy
from jobs.model.state import JobState, StateReason
from jobs.store.pools import set_policy
from tests.faults.scene.host_service import service_over_hosts
from tests.faults.scene.machine import need
from tests.integration.workers import reachable
from tests.integration.workers.places import a_place
from tests.integration.workers.service import eventually

pytestmark = [
    pytest.mark.integration,
    pytest.mark.faults,
    pytest.mark.slow,
    pytest.mark.skipif(bool(reachable.why_not()), reason=reachable.why_not()),
]

#: Says where it is, trains a step over the hosts, and says what it reaches.
LOOKS_AROUND = """
import os, socket, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 2))
model(torch.ones(4, 5)).sum().backward()
total = torch.tensor(float(dist.get_rank() + 1))
dist.all_reduce(total)
state = sys.argv[1]
print({
    "uid": os.getuid(),
    "interfaces": sorted(name for _, name in socket.if_nameindex()),
    "used": os.environ["GLOO_SOCKET_IFNAME"],
    "master": os.environ["MASTER_ADDR"],
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]) < 10,
    "state": os.path.exists(state),
    "sum": total.item(),
}, flush=True)
dist.destroy_process_group()
"""
TRAINS_ON = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 2))
while True:
    model(torch.ones(4, 5)).sum().backward()
    time.sleep(0.05)
"""


def test_ranks_in_full_boxes_reach_each_other_over_their_hosts_and_nothing_else_of_them() -> None:
    need("network namespaces")
    with a_place() as place, service_over_hosts(place, 2, box="auto", jobs_unboxed=False) as hosts:
        place.joinpath("redis").chmod(0o700)
        assert all(node.info.box is not None and node.info.box.level == "full" for node in hosts.records().values())
        hosts.run(set_policy("default", PoolPolicy("full", "none")))

        job = hosts.run_script({"train.py": LOOKS_AROUND}, str(place / "redis"), strategy="ddp", nodes=2)
        record = hosts.ended(job, 120)
        assert record.state is JobState.SUCCEEDED, record
        assert record.network == "host", "although the policy of the pool gives jobs none"
        assert [attempt.network for attempt in hosts.attempts(job)] == ["host"]
        seen = [ast.literal_eval(hosts.text(job, rank)) for rank in (0, 1)]
        leader = hosts.hosts.address(hosts.host(hosts.part_of(job, 0)))
        for rank in seen:
            assert rank.pop("uid") >= 1000, "an account of its own"
            expected = {"interfaces": ["eth0", "lo"], "used": "eth0", "master": leader, "processes": True}
            assert rank == expected | {"state": False, "sum": 3.0}
        alone = hosts.run_script({"train.py": "import socket; print(socket.if_nameindex())"})
        assert hosts.ended(alone, 60).network == "none"
        assert hosts.text(alone) == "[(1, 'lo')]"

        job = hosts.run_script({"train.py": TRAINS_ON}, strategy="ddp", nodes=2)
        eventually(lambda: hosts.job(job).first_step, "it trains")
        hosts.cancel(job)
        assert hosts.ended(job).reason is StateReason.CANCELLED_BY_USER
        hosts.leaves_nothing()
