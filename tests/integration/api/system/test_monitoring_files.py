"""The dashboard for Grafana and the alerts for Prometheus, held against what /metrics answers."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from jobs.model.provided_pool import PoolOffer
from jobs.protocol import names
from jobs.protocol.hardware import NodeReading, encode_readings
from jobs.store.pools import keep_pool
from shardyard.cli import COMMANDS
from shardyard.contract.hardware import SERIES_TITLES
from tests.integration.api.conftest import Api
from tests.support.promql_names import read_names

pytestmark = pytest.mark.anyio

DEPLOY = Path(__file__).parents[4] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "shardyard.json").read_text())
RULES = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
#: What Prometheus adds to each series, and the series that it makes itself.
ADDED = {"job", "instance"}
OF_PROMETHEUS: dict[str, set[str]] = {"up": ADDED}


def expressions() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")
    for rule in RULES:
        yield rule["alert"], rule["expr"]


def shown_labels() -> Iterator[tuple[str, str, set[str]]]:
    """What a legend or an annotation names, with the expression that it is of."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target["legendFormat"]))
    for rule in RULES:
        texts = " ".join(rule["annotations"].values())
        yield rule["alert"], rule["expr"], set(re.findall(r"\$labels\.(\w+)", texts))


@pytest.fixture
async def scraped(api: Api) -> dict[str, set[str]]:
    """The labels of each metric of a real answer, with a node, a job, a device that works, and a pool of an engine."""
    api.node()
    api.control.run(keep_pool("slurm", "host:file", 60, PoolOffer("slurm", "host:file", devices=1, nodes=1)))
    await api.submit()
    reading = NodeReading(0, dict.fromkeys(SERIES_TITLES, 1.0), {"xid_79": 1})
    api.control.client.set(names.readings_key("host-a"), encode_readings([reading]), ex=60)
    await api.get("/readyz")
    answer = await api.client.get("/metrics")
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels, ADDED)
    return found | OF_PROMETHEUS


async def test_every_metric_and_label_that_they_name_is_there(scraped: dict[str, set[str]]) -> None:
    assert len(scraped) > 20
    for title, expression in expressions():
        named = read_names(expression)
        assert named.metrics, title
        assert named.metrics.keys() <= scraped.keys(), title
        for metric, labels in named.metrics.items():
            assert labels <= scraped[metric], (title, metric)
            assert named.grouped <= scraped[metric], (title, metric)


def test_every_label_that_is_shown_is_one_that_the_expression_keeps() -> None:
    for title, expression, labels in shown_labels():
        named = read_names(expression)
        if named.grouped:
            assert labels <= named.grouped, title


async def test_every_variable_of_the_dashboard_is_a_label_of_its_metric(scraped: dict[str, set[str]]) -> None:
    variables = [one for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    for variable in variables:
        found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
        assert found is not None
        assert found[2] in scraped[found[1]]
    used = {name for _, expression in expressions() for name in re.findall(r"\$(\w+)", expression)}
    assert used == {variable["name"] for variable in variables}


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in DASHBOARD["panels"]:
        place: dict[str, int] = panel["gridPos"]
        columns, rows = (range(place[at], place[at] + place[size]) for at, size in (("x", "w"), ("y", "h")))
        cells = {(x, y) for x in columns for y in rows}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    commands = {name for _, group in COMMANDS for name in group}
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "action"}
        assert set(re.findall(r"`shardyard (\w+)", rule["annotations"]["action"])) <= commands


@pytest.mark.parametrize(
    ("expression", "metrics", "grouped"),
    [
        ('rate(a_total{x="b{c}", y=~"d"}[5m])', {"a_total": {"x", "y"}}, set()),
        ("sum by (le, r) (a) / on (i) max(b{}) and c > 2", {"a": set(), "b": set(), "c": set()}, {"le", "r", "i"}),
    ],
)
def test_names_are_read_from_expressions(expression: str, metrics: dict[str, set[str]], grouped: set[str]) -> None:
    found = read_names(expression)
    assert (found.metrics, found.grouped) == (metrics, grouped)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool of Prometheus")
@pytest.mark.parametrize("arguments", [("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")])
def test_prometheus_takes_the_alerts(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=ALERTS.parent, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
