"""A real Slurm cluster on the hosts of `tests.faults.inject.hosts`: a controller at their bridge, a slurmd on each.

Each node has 2 processors and 4 GPUs, which are files that Slurm counts and names. Partitions: `main`, without a limit;
`urgent`, whose jobs take the nodes of main's (SIGTERM, 20 s of grace, SIGKILL); `short`, with a limit of a minute.

    python -m tests.support.servers.slurm_cluster COMMAND...    runs a command beside a cluster of two nodes, as root
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.faults.inject.hosts import Hosts, running_hosts

START_SECONDS = 60.0
COMMAND_SECONDS = 60.0

#: Nobody but this user reaches the daemons, so they need no munge.
_CONFIG = """
ClusterName=tests
SlurmctldHost=syctl({bridge})
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={dir}/state
SlurmdSpoolDir={dir}/spool.%n
SlurmctldPidFile={dir}/slurmctld.pid
SlurmdPidFile={dir}/slurmd.%n.pid
SlurmctldLogFile={dir}/slurmctld.log
SlurmdLogFile={dir}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
ReturnToService=1
SlurmdParameters=config_overrides
SlurmdTimeout=20
KillWait=20
MessageTimeout=5
MinJobAge=60
SchedulerParameters=sched_interval=1,bf_interval=1
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
PartitionName=short Nodes=ALL MaxTime=1 State=UP
"""


class SlurmCluster:
    """Node `sy1` is on the first host, and so on."""

    def __init__(self, directory: Path, hosts: Hosts) -> None:
        self.directory = directory
        self.hosts = hosts
        self.environment: Mapping[str, str] = {"SLURM_CONF": str(directory / "slurm.conf")}

    def start(self) -> None:
        (self.directory / "state").mkdir(parents=True)
        for number in range(4):
            (self.directory / f"gpu{number}").touch()
        gpus = f"Name=gpu File={self.directory}/gpu[0-3] Flags=nvidia_gpu_env\n"
        (self.directory / "gres.conf").write_text(gpus)
        numbers = range(1, self.hosts.count + 1)
        nodes = "\n".join(
            f"NodeName=sy{host} NodeHostname=sy{host} NodeAddr={self.hosts.address(host)} CPUs=2 RealMemory=4000 "
            "Gres=gpu:4 State=UNKNOWN"
            for host in numbers
        )
        config = _CONFIG.format(dir=self.directory, bridge=self.hosts.bridge, nodes=nodes)
        (self.directory / "slurm.conf").write_text(config)
        self.start_controller()
        for host in numbers:
            (self.directory / f"spool.sy{host}").mkdir()
            self._start(self.hosts.command(host), f"sy{host}", "slurmd")
        self._await(lambda: self.run("sinfo", "-h", "-o", "%A").split()[:1] == [f"0/{self.hosts.count}"], "idle nodes")

    def start_controller(self) -> None:
        self._start(self.hosts.command_at_bridge(), "syctl", "slurmctld", "-i")

    def stop_controller(self) -> None:
        """End the controller, as when its host is serviced. What runs goes on."""
        controller = psutil.Process(int((self.directory / "slurmctld.pid").read_text()))
        controller.terminate()
        controller.wait(COMMAND_SECONDS)

    def run(self, *command: str, text: str = "") -> str:
        """What a command of Slurm prints, at the bridge."""
        done = subprocess.run(
            self.hosts.command_at_bridge(*command),
            env=os.environ | self.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def jobs(self, *states: str) -> dict[str, str]:
        """States of the jobs that Slurm knows, by their ids; all, or those of some states."""
        chosen = ["-t", ",".join(states)] if states else ["-t", "all"]
        lines = self.run("squeue", "-h", *chosen, "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines)

    def submit_urgent(self, nodes: int, seconds: float) -> str:
        """A job that takes whole nodes from those of `main`."""
        script = f"#!/bin/sh\nsleep {seconds}\n"
        options = ("--partition=urgent", f"--nodes={nodes}", "--exclusive", "--output=/dev/null")
        return self.run("sbatch", "--parsable", *options, text=script).strip()

    def take_down(self, node: str) -> None:
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")

    def bring_back(self, node: str) -> None:
        self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def _start(self, place: list[str], name: str, daemon: str, *options: str) -> None:
        """Start a daemon, which goes into the background, on a host with a name of its own."""
        command = ["unshare", "--uts", "--", "sh", "-c", 'hostname "$0" && exec "$@"', name]
        command += ["setsid", daemon, "-f", str(self.directory / "slurm.conf"), *options]
        with (self.directory / f"{daemon}.{name}.out").open("ab") as log:
            subprocess.run([*place, *command], check=True, stdout=log, stderr=log, timeout=COMMAND_SECONDS)

    def _await(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"no {what}: {(self.directory / 'slurmctld.log').read_text()[-2000:]}"
            time.sleep(0.05)


@contextmanager
def slurm_cluster(directory: Path, count: int) -> Iterator[SlurmCluster]:
    """A cluster of so many nodes. Whatever still runs on them in the end is killed with them."""
    with running_hosts(count) as hosts:
        cluster = SlurmCluster(directory / "slurm", hosts)
        cluster.start()
        yield cluster


def main(command: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="slurm-") as directory, slurm_cluster(Path(directory), 2) as cluster:
        environment = os.environ | cluster.environment
        return subprocess.run(cluster.hosts.command_at_bridge(*command), env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["sinfo"]))
