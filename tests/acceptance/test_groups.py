"""Comparisons and sweeps by real workers, and what is left of them when processes are killed in the middle."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend

from shardyard.client import Client
from shardyard.contract.errors import NotFound, ShardyardError
from shardyard.contract.groups import GroupSummary
from shardyard.contract.responses import JobStatus
from tests.acceptance.harness import Up, wait_until

pytestmark = pytest.mark.acceptance

SPEC: dict[str, Any] = {
    "name": "digits",
    "program": {
        "model": {"ref": "mlp", "args": {"in_features": 64, "hidden": [32], "out_features": 10}},
        "data": {"ref": "digits", "batch_size": 48},
        "loss": {"ref": "cross_entropy"},
        "optimizer": {"ref": "sgd", "args": {"lr": 0.1}},
    },
}
#: Of a group on a slow and busy machine.
GROUP_SECONDS = 300.0


def wait_for_group(read: Callable[[], GroupSummary], is_reached: Callable[[GroupSummary], bool]) -> GroupSummary:
    """Also while the API is away."""
    seen: list[GroupSummary] = []

    def look() -> bool:
        try:
            seen[:] = [read()]
        except NotFound:
            raise
        except ShardyardError:
            return False
        return is_reached(seen[0])

    wait_until(look, GROUP_SECONDS, lambda: seen)
    return seen[0]


def has_ended(count: int) -> Callable[[GroupSummary], bool]:
    """Whether so many of its jobs have."""
    return lambda found: sum(found.counts.get(state, 0) for state in ("succeeded", "failed", "cancelled")) >= count


def all_jobs(client: Client) -> Counter[str]:
    """Every job of the service, by its state."""
    return Counter(job.state for job in client.jobs())


def span_of(job: JobStatus) -> tuple[datetime, datetime]:
    """Of one that has ended: from its first rank to its end."""
    assert job.started_at is not None
    assert job.finished_at is not None
    return job.started_at, job.finished_at


@pytest.mark.timeout(600)
def test_a_comparison_is_measured_reported_and_survives_the_death_of_api_and_worker(up: Up) -> None:
    client = up.start()
    started = client.compare(SPEC, strategies=["single", "dp", "ddp"], devices=[1, 2], steps=60)
    assert len(started.variants) == 5

    wait_for_group(lambda: client.comparison(started.id), has_ended(1))
    for service in ("api", "worker"):
        os.kill(up.pids()[service], signal.SIGKILL)
    found = wait_for_group(lambda: client.comparison(started.id), lambda found: found.ended)

    assert found.counts == {"succeeded": 5}
    assert all_jobs(client) == {"succeeded": 5}, "none twice, and none besides"
    report = client.comparison_report(started.id)
    assert report.complete
    for one in report.variants:
        assert one.rows_per_second is not None
        assert one.rows_per_second > 0
        assert one.windows == 4
        assert one.efficiency is not None
        assert [point.step for point in one.curve][:3] == [0, 1, 2]
    losses = [one.loss for one in report.variants]
    assert all(loss == pytest.approx(losses[0], rel=0.02) for loss in losses), "the same rows in each step"
    assert report.recommendation.verdict in ("recommended", "too_noisy")
    spans = sorted(map(span_of, (client.job(one.job).status for one in report.variants)))
    assert all(end <= start for (_, end), (start, _) in pairwise(spans)), "one after another"


@pytest.mark.timeout(600)
def test_a_sweep_ranks_its_trials_and_a_cancelled_one_keeps_what_it_has(up: Up) -> None:
    client = up.start()
    grid: dict[str, list[Any]] = {"program.optimizer.args.lr": [1e-4, 0.1], "program.seed": [1, 2]}
    started = client.sweep(SPEC, grid=grid, steps=30, max_concurrent=2)
    found = wait_for_group(lambda: client.get_sweep(started.id), lambda found: found.ended)
    assert found.counts == {"succeeded": 4}
    report = client.sweep_report(started.id)
    assert report.best in (2, 3), "the larger rate learns more in thirty steps"

    many = client.sweep(SPEC, grid={"program.seed": list(range(50))}, steps=30)
    wait_for_group(lambda: client.get_sweep(many.id), has_ended(1))
    client.cancel_sweep(many.id)
    found = wait_for_group(lambda: client.get_sweep(many.id), lambda found: found.ended)
    assert found.state == "cancelled"
    assert found.counts["succeeded"] + found.counts["cancelled"] == 50
    assert client.sweep_report(many.id).best is not None


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sweep_that_optuna_leads_goes_on_where_it_was_when_everything_is_killed(up: Up, tmp_path: Path) -> None:
    client = up.start()
    random = {"program.optimizer.args.lr": {"min": 1e-5, "max": 0.5, "log": True}}
    started = client.sweep(
        SPEC, random=random, trials=12, search="optuna", steps=30, max_concurrent=2, seed=5, key="once"
    )
    assert (started.search, started.planned, len(started.trials)) == ("optuna", 12, 2)
    for reached, service in ((2, "api"), (4, "worker"), (6, "control")):
        wait_for_group(lambda: client.get_sweep(started.id), has_ended(reached))
        os.kill(up.pids()[service], signal.SIGKILL)
    wait_for_group(lambda: client.get_sweep(started.id), has_ended(8))
    up.kill()
    client = up.start()
    found = wait_for_group(lambda: client.get_sweep(started.id), lambda found: found.ended)

    assert found.counts == {"succeeded": 12}
    assert all_jobs(client) == {"succeeded": 12}, "none twice, and none besides"
    trials = client.get_sweep(started.id).trials
    assert [trial.number for trial in trials] == list(range(12))
    for trial in trials:
        spec = client.job(trial.job).status.spec
        assert spec["program"]["optimizer"]["args"]["lr"] == trial.values["program.optimizer.args.lr"]
    report = client.sweep_report(started.id)
    assert report.complete
    assert report.best is not None
    assert report.trials[report.best].values["program.optimizer.args.lr"] > 1e-3

    (tmp_path / "study.log").write_bytes(client.sweep_study(started.id))
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))
    study = optuna.load_study(study_name=started.id, storage=storage)
    assert study.best_trial.number == report.best
    assert study.best_value == report.trials[report.best].value


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_sweep_of_a_hundred_jobs_that_is_killed_again_and_again_runs_each_once(up: Up) -> None:
    client = up.start()
    started = client.sweep(SPEC, grid={"program.seed": list(range(100))}, steps=20, max_concurrent=3, key="once")
    for reached, service in ((10, "api"), (20, "worker"), (30, "control"), (40, "api"), (50, "worker")):
        wait_for_group(lambda: client.get_sweep(started.id), has_ended(reached))
        os.kill(up.pids()[service], signal.SIGKILL)
    again = client.sweep(SPEC, grid={"program.seed": list(range(100))}, steps=20, max_concurrent=3, key="once")
    assert again.id == started.id
    wait_for_group(lambda: client.get_sweep(started.id), has_ended(60))
    up.kill()
    client = up.start()
    found = wait_for_group(lambda: client.get_sweep(started.id), lambda found: found.ended)
    assert found.counts == {"succeeded": 100}
    assert all_jobs(client) == {"succeeded": 100}
    trials = client.get_sweep(started.id).trials
    assert sorted(trial.values["program.seed"] for trial in trials) == list(range(100))
    assert len({trial.job for trial in trials}) == 100
