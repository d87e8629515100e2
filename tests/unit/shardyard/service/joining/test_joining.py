"""The parts of `join` that need no service: settings, what checks say, the unit, and addresses."""

import stat
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shardyard.contract.errors import InvalidRequest
from shardyard.contract.joins import NodeReachView, NodeSetup
from shardyard.service.joining import checks, reach, systemd
from shardyard.service.joining.checks import CheckResult
from shardyard.service.joining.pinned import split_address, trust_fingerprint
from shardyard.service.joining.settings_file import NodeFiles, bucket_variables

SETUP = NodeSetup(
    node="gpu-2",
    token="sy_a_b",
    url="https://10.0.0.1:8000",
    redis_url="rediss://shardyard-worker:w@10.0.0.1:6380/0",
    telemetry_url="rediss://shardyard-worker:w@10.0.0.1:6381/0",
    supervisor_redis_url="rediss://shardyard-supervisor:s@10.0.0.1:6380/0",
    supervisor_telemetry_url="rediss://shardyard-supervisor:s@10.0.0.1:6381/0",
    authority="PEM",
    secret_keys="KEY\n",
    version="0.1.0",
    torch="2.13.0",
    address_seen="10.0.0.2",
    alive_on="",
    now_us=0,
)


def setup(**changes: Any) -> NodeSetup:
    return msgspec.structs.replace(SETUP, **changes)


# -- settings ----------------------------------------------------------------------------------------


def test_settings_are_written_for_their_owner_alone_and_read_back(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path / "own")
    assert files.read() == {}
    written = files.write(SETUP, {"SHARDYARD_NODE_ADDRESS": "10.0.0.2", "SHARDYARD_POOL": "a100"})
    assert files.read() == written
    assert written["SHARDYARD_REDIS_URL"] == f"{SETUP.redis_url}?ssl_ca_certs={tmp_path / 'own' / 'ca.pem'}"
    assert (written["SHARDYARD_STORAGE"], written["SHARDYARD_NODE_TOKEN"]) == ("service", "sy_a_b")
    assert {stat.S_IMODE(file.stat().st_mode) for file in files.directory.iterdir()} == {0o600}
    assert stat.S_IMODE(files.directory.stat().st_mode) == 0o700
    assert (files.directory / "secret.key").read_text() == "KEY\n"


def test_a_second_join_keeps_the_token_and_what_somebody_has_added(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    files.write(SETUP, {"SHARDYARD_POOL": "a100"})
    with files.settings.open("a") as file:
        file.write("SHARDYARD_DATA_ROOT=/data\n")
    again = files.write(setup(token=""), {})
    assert again["SHARDYARD_NODE_TOKEN"] == "sy_a_b"
    assert (again["SHARDYARD_POOL"], again["SHARDYARD_DATA_ROOT"]) == ("a100", "/data")


def test_a_bucket_that_was_named_once_stays_the_storage(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    named = {"SHARDYARD_STORAGE": "s3://bucket/prefix", "AWS_ACCESS_KEY_ID": "key", "PATH": "/bin"}
    files.write(SETUP, bucket_variables(named))
    again = files.write(SETUP, bucket_variables({"SHARDYARD_STORAGE": "/mnt/x", "AWS_ACCESS_KEY_ID": "another"}))
    assert (again["SHARDYARD_STORAGE"], again["AWS_ACCESS_KEY_ID"]) == ("s3://bucket/prefix", "key")
    assert "PATH" not in again


@pytest.mark.parametrize("value", ['a"b', "a\\b", "a\nB=1", "$(x)", "`x`"])
def test_a_value_that_would_be_read_as_something_else_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(InvalidRequest, match="SHARDYARD_TOPOLOGY"):
        NodeFiles(tmp_path).write(SETUP, {"SHARDYARD_TOPOLOGY": value})


# -- addresses and fingerprints ----------------------------------------------------------------------


@pytest.mark.parametrize("url", ["http://10.0.0.1:8000", "https://", "ftp://x", "https://u:p@x", "https://x/path"])
def test_an_address_that_is_not_protected_or_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="https://HOST:PORT"):
        split_address(url)


def test_an_address_may_lack_its_scheme() -> None:
    assert (split_address("10.0.0.1:8000").hostname, split_address("10.0.0.1:8000").port) == ("10.0.0.1", 8000)


@pytest.mark.parametrize("text", ["", "sha256:12", "md5:" + "0" * 64, "sha256:" + "g" * 64])
def test_a_fingerprint_that_is_none_is_refused_before_anybody_is_asked(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--fingerprint"):
        trust_fingerprint(split_address("https://192.0.2.1:1"), text)


# -- what checks say ---------------------------------------------------------------------------------


def test_another_version_fails_and_says_which_to_install() -> None:
    found = checks.check_version(setup(version="9.9"))
    assert (found.result, "==9.9" in found.advice) == (CheckResult.FAILED, True)


@pytest.mark.parametrize(
    ("apart", "took", "result"),
    [
        (0.01, 0.0, CheckResult.PASSED),
        (0.5, 1.0, CheckResult.PASSED),
        (0.5, 0.02, CheckResult.DOUBTFUL),
        (-3.0, 0.02, CheckResult.DOUBTFUL),
        (4000.0, 0.02, CheckResult.FAILED),
    ],
)
def test_clocks_count_as_apart_where_the_answer_came_too_fast_to_explain_it(
    apart: float, took: float, result: CheckResult
) -> None:
    now = time.time()
    found = checks.check_clock(setup(now_us=int(now * 1e6)), now + apart - took / 2, now + apart + took / 2)
    assert found.result is result, found
    assert (found.advice == "") == (result is CheckResult.PASSED)


def test_a_name_that_is_alive_elsewhere_fails_and_one_that_runs_here_does_not() -> None:
    taken = setup(alive_on="other")
    assert checks.check_name(taken, runs_here=False).result is CheckResult.FAILED
    assert checks.check_name(taken, runs_here=True).result is CheckResult.PASSED


def test_an_address_behind_a_nat_is_doubtful() -> None:
    assert checks.check_address(SETUP, "10.0.0.2").result is CheckResult.PASSED
    assert "NAT" in checks.check_address(SETUP, "192.168.0.2").advice


@pytest.mark.parametrize(
    ("view", "result"),
    [
        (NodeReachView(reached=True, address="10.0.0.2"), CheckResult.PASSED),
        (NodeReachView(reached=False, address="10.0.0.2", why="refused"), CheckResult.DOUBTFUL),
        (NodeReachView(reached=False, address="10.9.9.9"), CheckResult.UNKNOWN),
    ],
)
def test_what_the_service_could_not_try_is_not_called_closed(view: NodeReachView, result: CheckResult) -> None:
    assert reach._judge(view, "10.0.0.2", 4000).result is result


# -- the unit ----------------------------------------------------------------------------------------


def test_a_unit_leaves_jobs_alone_where_systemd_can(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path)
    newer, older = systemd.unit_text(files, 254), systemd.unit_text(files, 252)
    assert f"EnvironmentFile={tmp_path}/node.env" in newer
    assert ("KillMode=process" in newer, "DelegateSubgroup" in newer) == (True, True)
    assert ("KillMode=mixed" in older, "--stop-attempts-on-exit" in older) == (True, True)
    assert "DelegateSubgroup" not in older
