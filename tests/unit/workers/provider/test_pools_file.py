"""The file of pools that a provider keeps."""

from pathlib import Path

import pytest

from workers.provider.pools_file import parse_time, read_pools_file, read_template

EXAMPLE = """
[pools.slurm]
engine = "slurm"
partition = "main"
nodes = {min = 0, max = 3}
devices = "cpu:2"          # or "auto": what the allocation gives; gres is asked for GPUs only
idle_seconds = 600
time_limit = "08:00:00"
"""


def read(tmp_path: Path, text: str) -> object:
    (tmp_path / "pools.toml").write_text(text)
    return read_pools_file(tmp_path / "pools.toml")


def test_the_example_of_the_documents_is_one(tmp_path: Path) -> None:
    (tmp_path / "pools.toml").write_text(EXAMPLE)
    (pool,) = read_pools_file(tmp_path / "pools.toml").values()
    assert (pool.nodes.min, pool.nodes.max, pool.device_count, pool.gres) == (0, 3, 2, "")
    assert (pool.time_limit_seconds, pool.grace(30.0)) == (28_800, 120)


@pytest.mark.parametrize(
    ("devices", "count", "gres"),
    [("auto", None, ""), ("gpu:4", 4, "gpu:4"), ("gpu:a100:8", 8, "gpu:a100:8"), ("cpu:16", 16, "")],
)
def test_gres_is_asked_for_gpus_only(tmp_path: Path, devices: str, count: int | None, gres: str) -> None:
    (tmp_path / "pools.toml").write_text(EXAMPLE.replace("cpu:2", devices))
    (pool,) = read_pools_file(tmp_path / "pools.toml").values()
    assert (pool.device_count, pool.gres) == (count, gres)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("08:00:00", 28_800),
        ("2-12", 216_000),
        ("1-00:30", 88_200),
        ("1-00:00:30", 86_430),
    ],
)
def test_times_are_those_of_slurm(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "00:00:30", "UNLIMITED", "8h", "1-", "-1", "1:2:3:4", "400-0"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write 08:00:00|between a minute and a year"):
        parse_time(text)


def test_a_short_time_limit_leaves_half_of_it_for_work(tmp_path: Path) -> None:
    (tmp_path / "pools.toml").write_text(EXAMPLE.replace("08:00:00", "00:01:00"))
    (pool,) = read_pools_file(tmp_path / "pools.toml").values()
    assert pool.grace(600.0) == 30


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('engine = "slurm"', 'engine = "torque"'), "pools.slurm.engine: Input should be 'slurm'"),
        (('partition = "main"', 'partition = "main --uid=0"'), "pools.slurm.partition"),
        (("{min = 0, max = 3}", "{min = 4, max = 3}"), r"pools.slurm.nodes: min \(4\) must not be above max \(3\)"),
        (("{min = 0, max = 3}", "{max = 9999}"), "pools.slurm.nodes.max"),
        (("cpu:2", "tpu:2"), "pools.slurm.devices: 'tpu:2' names no devices"),
        (("idle_seconds", "idle_minutes"), "pools.slurm.idle_minutes: Extra inputs are not permitted"),
        (("08:00:00", "soon"), "pools.slurm.time_limit: 'soon' is not a time of Slurm"),
        (("[pools.slurm]", "[pools.Slurm]"), "pools.Slurm: String should match pattern"),
        (("[pools.slurm]", "[pools.slurm"), "not TOML"),
        (("idle_seconds = 600", 'output = "/logs/$(id) x"'), "pools.slurm.output"),
        (("idle_seconds = 600", 'command = "/bin/$(id)"'), "pools.slurm.command"),
        (("idle_seconds = 600", 'template = "head.sh"'), "head.sh: No such file or directory"),
    ],
)
def test_an_error_names_its_field(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read(tmp_path, EXAMPLE.replace(*change))


def test_a_template_is_found_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "head.sh").write_text("#SBATCH --account=ml\n")
    (tmp_path / "pools.toml").write_text(EXAMPLE + 'template = "head.sh"\n')
    (pool,) = read_pools_file(tmp_path / "pools.toml").values()
    assert read_template(pool) == "#SBATCH --account=ml\n"


def test_what_is_no_file_of_pools_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file"):
        read_pools_file(tmp_path / "none.toml")
    with pytest.raises(ValueError, match="larger than"):
        read(tmp_path, "#" * (1 << 21))
    (tmp_path / "pools.toml").write_bytes(b"\xff")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_pools_file(tmp_path / "pools.toml")
