"""Slurm's commands that fail, hang or answer oddly: small programs of their names do so."""

from pathlib import Path

import pytest

from workers.provider import slurm as slurm_module
from workers.provider.slurm import EngineError, EngineJob, Slurm


def command(directory: Path, name: str, body: str) -> Slurm:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return Slurm({"PATH": f"{directory}:/usr/bin:/bin"})


@pytest.mark.parametrize("answer", ["4711", "4711;cluster", "some words of the site\n4711"])
def test_the_id_is_what_parsable_prints(tmp_path: Path, answer: str) -> None:
    slurm = command(tmp_path, "sbatch", f"cat >{tmp_path}/script; printf '{answer}\\n'")
    assert slurm.submit(["sbatch", "--parsable"], "#!/bin/bash\n") == "4711"
    assert (tmp_path / "script").read_text() == "#!/bin/bash\n"


@pytest.mark.parametrize(
    ("body", "words", "unclear"),
    [
        ("echo 'sbatch: error: invalid partition specified: x' >&2; exit 1", "invalid partition", False),
        ("echo 'sbatch: error: Batch job submission failed: Socket timed out' >&2; exit 1", "timed out", True),
        ("exit 3", "exit code 3", False),
        ("echo hello", "not the id of a job", True),
        ("sleep 60", "did not answer within 0.3 s", True),
    ],
)
def test_a_failure_says_whether_there_may_be_a_job_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, words: str, unclear: bool
) -> None:
    if "sleep" in body:
        monkeypatch.setattr(slurm_module, "COMMAND_SECONDS", 0.3)
    slurm = command(tmp_path, "sbatch", body)
    with pytest.raises(EngineError, match=words) as failed:
        slurm.submit(["sbatch"], "")
    assert failed.value.unclear is unclear


def test_a_host_without_slurm_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is Slurm installed here"):
        Slurm({}).submit(["sbatch-that-is-not-there"], "")


def test_jobs_of_this_user_are_listed_by_the_beginning_of_their_names(tmp_path: Path) -> None:
    lines = [
        "7|PENDING|2|Priority|shardyard-0-slurm-a",
        "8|RUNNING|1|None|shardyard-0-slurm-b|with a bar",
        "9|NODE_FAIL|1|NodeDown|shardyard-0-slurm-c",
        "10|RUNNING|1|None|other",
        "slurm says something",
    ]
    slurm = command(tmp_path, "squeue", "\n".join(f"echo '{line}'" for line in lines))
    pending, running, ended = slurm.list_jobs("shardyard-0-")
    assert pending == EngineJob("7", "shardyard-0-slurm-a", "PENDING", 2, "Priority")
    assert (pending.is_pending, pending.has_ended) == (True, False)
    assert (running.why, running.is_pending, running.has_ended) == ("", False, False)
    assert ended.has_ended


def test_an_end_is_never_concluded_from_silence(tmp_path: Path) -> None:
    slurm = command(tmp_path, "squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(EngineError, match="Unable to contact"):
        slurm.list_jobs("shardyard-")


@pytest.mark.parametrize(
    ("answer", "count"),
    [("gpu:4", 4), ("gpu:a100:8(S:0-1),shard:16\ngpu:a100:4", 4), ("(null)\ngpu:2", 2), ("(null)", 0)],
)
def test_gpus_of_a_partition_are_those_that_each_of_its_nodes_has(tmp_path: Path, answer: str, count: int) -> None:
    slurm = command(tmp_path, "sinfo", f"printf '{answer}\\n'")
    assert slurm.count_gpus("main") == count


def test_a_partition_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no partition 'nowhere'"):
        command(tmp_path, "sinfo", "exit 0").count_gpus("nowhere")
