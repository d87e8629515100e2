"""What sbatch is given for a block."""

from workers.provider.batch_script import BlockRequest, batch_environment, batch_script, sbatch_arguments
from workers.provider.pools_file import SlurmPool

POOL = SlurmPool.model_validate(
    {
        "engine": "slurm",
        "partition": "main",
        "nodes": {"max": 3},
        "devices": "gpu:4",
        "command": "/opt/shardyard/bin/shardyard",
        "cpus": 16,
    }
)
REQUEST = BlockRequest("slurm", "shardyard-0-slurm-1", 2, "gpu:4")


def test_sbatch_gets_flags_that_all_versions_know() -> None:
    assert sbatch_arguments(REQUEST, POOL, 30.0) == [
        "sbatch",
        "--parsable",
        "--job-name=shardyard-0-slurm-1",
        "--partition=main",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--time=08:00:00",
        "--signal=B:USR2@120",
        "--no-requeue",
        "--open-mode=append",
        "--export=ALL",
        "--output=/dev/null",
        "--gres=gpu:4",
        "--cpus-per-task=16",
    ]
    virtual = POOL.model_copy(update={"devices": "cpu:2", "cpus": None})
    assert not [word for word in sbatch_arguments(BlockRequest("slurm", "n", 1), virtual, 30.0) if "gres" in word]


def test_the_script_starts_a_worker_on_each_node_and_passes_the_signal_on() -> None:
    script = batch_script(REQUEST, POOL, 30.0)
    assert script.startswith("#!/bin/bash\n")
    assert "trap 'kill -USR2 \"$step\" 2>/dev/null' USR2 TERM" in script
    assert (
        "srun --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --cpus-per-task=16 \\\n"
        "  /opt/shardyard/bin/shardyard worker --pool slurm --devices auto --idle-exit 600 --lifetime 28680 "
        '--block "$SLURM_JOB_ID" &\n'
    ) in script


def test_nodes_that_are_kept_do_not_leave_when_they_are_idle() -> None:
    assert "--idle-exit" not in batch_script(BlockRequest("slurm", "n", 1, kept=True), POOL, 30.0)


def test_the_head_of_a_site_comes_first_with_its_own_shebang_or_ours() -> None:
    head = "#SBATCH --account=ml\nmodule load cuda\n"
    assert batch_script(REQUEST, POOL, 30.0, head).startswith("#!/bin/bash\n#SBATCH --account=ml\nmodule load cuda\n\n")
    assert batch_script(REQUEST, POOL, 30.0, "#!/bin/bash -l\n" + head).startswith("#!/bin/bash -l\n#SBATCH --account")


def test_a_block_gets_the_settings_of_the_service_and_nothing_of_the_providers_own_place() -> None:
    ours = {
        "SHARDYARD_REDIS_URL": "redis://x",
        "SHARDYARD_NODE": "login",
        "SHARDYARD_NODE_ADDRESS": "10.0.0.1",
        "SLURM_JOB_ID": "1",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURMD_NODENAME": "login",
        "PATH": "/bin",
    }
    assert batch_environment(ours) == {
        "SHARDYARD_REDIS_URL": "redis://x",
        "SLURM_CONF": "/etc/slurm.conf",
        "PATH": "/bin",
    }
