"""The compose file for one host of several runs the worker that the one for a single host runs."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
#: What a host with the others' network does in another way.
NETWORK = {"networks", "network_mode", "extra_hosts", "dns_opt", "depends_on"}
#: Named by the host, and not by the volumes of one engine.
DIFFERENT = NETWORK | {"volumes", "environment", "cap_add"}
#: To see the storage of one engine, which is its API's, as its own.
MAPPING = {"SETFCAP"}


def worker_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())["services"]["worker"]
    return found


def test_a_worker_on_one_of_several_hosts_has_the_rights_and_limits_of_a_single_one() -> None:
    alone, of_several = worker_of("docker-compose.yml"), worker_of("docker-compose.hosts.yml")
    assert set(alone) ^ set(of_several) <= NETWORK
    for name in set(alone) - DIFFERENT:
        assert of_several[name] == alone[name], name
    assert set(alone["cap_add"]) - MAPPING == set(of_several["cap_add"])


def test_a_worker_on_one_of_several_hosts_has_the_hosts_network_and_must_know_its_address() -> None:
    worker = worker_of("docker-compose.hosts.yml")
    assert worker["network_mode"] == "host"
    assert "ports" not in worker
    assert worker["environment"]["SHARDYARD_NODE_ADDRESS"].startswith("${SHARDYARD_NODE_ADDRESS:?")
    own = {"SHARDYARD_NODE", "SHARDYARD_NODE_ADDRESS", "SHARDYARD_TOPOLOGY"}
    assert set(worker["environment"]) - own == set(worker_of("docker-compose.yml")["environment"]) - {"MAP_STORAGE"}


def test_every_file_of_a_worker_is_mounted_on_one_of_several_hosts_too() -> None:
    alone = {text.split(":")[1] for text in worker_of("docker-compose.yml")["volumes"] if ":" in text}
    of_several = {
        text.removesuffix(":ro").rpartition(":")[2] for text in worker_of("docker-compose.hosts.yml")["volumes"]
    }
    assert alone <= of_several


def test_nothing_is_root_but_what_makes_boxes_and_what_gives_volumes_away() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert {name for name, service in services.items() if service["user"] == "0:0"} == {"worker", "prepare"}
    assert services["api"]["user"].split(":-")[1].startswith("10001}")
    assert "cap_add" not in services["api"]


def test_the_image_of_the_api_is_that_of_an_ordinary_user() -> None:
    stages = (ROOT / "Dockerfile").read_text().split("\nFROM ")
    users = {stage.split()[2]: re.findall(r"(?m)^USER (\S+)", stage) for stage in stages if " AS " in stage}
    assert users["api"] == ["10001:10001"]
    assert users["worker"] == ["0:0"]
