"""Rows 1, 18 and 19 for runs that save checkpoints: what was saved last counts, and nothing half of it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jobs.files import checkpoints, paths
from jobs.model.state import JobState, StateReason
from tests.faults.conftest import LEASE
from tests.faults.inject import processes
from tests.faults.inject.disk import fill
from tests.faults.inject.proxy import Act, Rule
from tests.faults.inject.trace import failing_calls
from tests.faults.scene.machine import need
from tests.faults.scene.site import Site
from tests.integration.workers.service import TENANT, eventually, is_dead

pytestmark = [pytest.mark.integration, pytest.mark.faults]

EVERY, STEPS = 10, 45
#: What becomes of an attempt whose supervisor and worker are both dead: who notices first names it.
NOBODY_LEFT = frozenset({StateReason.SUPERVISOR_LOST, StateReason.LEASE_EXPIRED, StateReason.NODE_LOST})


@pytest.fixture
def undisturbed(site: Site) -> Callable[..., None]:
    """Has a run of the same spec end in peace, whose report those of its name must then have."""

    def of(strategy: str, devices: int) -> None:
        name = f"saving-{strategy}"
        job = post(site, strategy, devices, name=name, seconds=0.0)
        assert site.finished(job, 60).state is JobState.SUCCEEDED
        site.allow(baselines={name: site.essence(job)}, losses={StateReason.SUPERVISOR_LOST})

    return of


def post(site: Site, strategy: str = "single", devices: int = 1, **options: Any) -> str:
    chosen: dict[str, Any] = {
        "name": f"saving-{strategy}",
        "steps": STEPS,
        "every": EVERY,
        "seconds": 0.03,
        "talks": True,
    }
    return site.post(strategy, devices, **(chosen | options))


def post_held(site: Site, strategy: str, devices: int, step: int) -> str:
    """A run that stands still in a step until its supervisor is killed (`stop_dead`, `kill`)."""
    at_step = step * (devices if strategy == "dp" else 1)
    job = post(site, strategy, devices, seconds=0.0, fault="wait_for_the_test", at_step=at_step)
    site.held(job)
    return job


def kill(site: Site, job: str) -> None:
    processes.kill(site.supervisor(site.attempt(job)))
    site.let_go(job)


def directory(site: Site, job: str) -> Path:
    return paths.checkpoints_dir(site.settings.storage, TENANT, job)


def pointed(site: Site, job: str) -> int:
    """The step of the checkpoint that counts; 0 while there is none."""
    found = site.job(job).checkpoint
    return int(found["step"]) if found is not None else 0


def saves(site: Site, job: str, step: int) -> None:
    eventually(lambda: pointed(site, job) >= step, f"a checkpoint of step {step}")


def supervisor_of(site: Site, job: str) -> int:
    """0 while it has none."""
    return site.supervisor(site.attempt(job)) if site.job(job).started else 0


def lost_once(site: Site, job: str) -> bool:
    attempts = site.attempts(job)
    return bool(attempts) and attempts[0].reason is StateReason.SUPERVISOR_LOST


def ends_as_if_nothing_had_been(site: Site, job: str, resumed: int | None, attempt: int = 2) -> None:
    """Check that an attempt went on from a step (None: from none), and the job ended. The site's fixture then compares
    its report with that of the undisturbed run."""
    record = site.finished(job, 60)
    assert (record.state, record.attempt, record.retries) == (JobState.SUCCEEDED, attempt, 0)
    went_on = site.attempts(job)[-1].resumed
    assert (went_on["step"] if went_on else None) == resumed
    assert [path.name for path in directory(site, job).iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("strategy", "devices"),
    [("ddp", 2), pytest.param("dp", 3, marks=pytest.mark.slow), pytest.param("single", 1, marks=pytest.mark.slow)],
)
def test_row_01_a_run_whose_supervisor_is_killed_goes_on_from_its_last_checkpoint(
    site: Site, undisturbed: Callable[..., None], strategy: str, devices: int
) -> None:
    undisturbed(strategy, devices)
    job = post_held(site, strategy, devices, EVERY + 5)
    saves(site, job, EVERY)
    kill(site, job)
    ends_as_if_nothing_had_been(site, job, EVERY)


@pytest.mark.slow
def test_row_07_a_supervisor_that_wakes_after_its_lease_moves_no_pointer_of_the_next_attempt(
    site: Site, undisturbed: Callable[..., None]
) -> None:
    undisturbed("ddp", 2)
    site.allow(losses={StateReason.LEASE_EXPIRED})
    job = post(site, "ddp", 2)
    saves(site, job, EVERY)
    supervisor = site.supervisor(site.attempt(job))
    with processes.frozen(supervisor):
        site.reaches(job, JobState.RUNNING, attempt=2, seconds=6 * LEASE)
    eventually(lambda: is_dead(supervisor), "it leaves when it wakes")
    last = site.attempts(job)[1].resumed
    assert last is not None
    ends_as_if_nothing_had_been(site, job, last["step"])
    newest = site.job(job).checkpoint
    assert newest is not None
    assert newest["attempt"] == 2


def test_row_12_a_checkpoint_is_committed_and_gone_on_from_once_when_replies_are_lost(
    site: Site, undisturbed: Callable[..., None]
) -> None:
    undisturbed("single", 1)
    rules = [site.proxy.add(Rule(name, Act.DROP_REPLY)) for name in ("commit_checkpoint", "record_resume")]
    job = post_held(site, "single", 1, EVERY + 5)
    saves(site, job, EVERY)
    kill(site, job)
    ends_as_if_nothing_had_been(site, job, EVERY)
    assert [rule.hits for rule in rules] == [1, 1]


@pytest.mark.parametrize(
    ("place", "resumed"),
    [
        pytest.param("written", EVERY, marks=pytest.mark.slow),
        pytest.param("synced", EVERY, marks=pytest.mark.slow),
        pytest.param("renamed", EVERY, marks=pytest.mark.slow),
        pytest.param("committed", 2 * EVERY, marks=pytest.mark.slow),
    ],
)
def test_row_19_a_checkpoint_that_was_being_saved_at_a_kill_is_whole_or_nothing(
    site: Site, undisturbed: Callable[..., None], place: str, resumed: int
) -> None:
    undisturbed("single", 1)
    site.stop_worker()
    site.worker_environment = {"SHARDYARD_FAILPOINT": f"checkpoint.{place}:kill@2"}
    site.start_worker()
    site.allow(losses=NOBODY_LEFT)
    job = post(site)
    supervisor = eventually(partial(supervisor_of, site, job), "it has a supervisor")
    site.kill_worker()  # or it would start the next attempt with the same failpoint
    eventually(lambda: is_dead(supervisor), "its supervisor dies")
    site.worker_environment = {}
    site.start_worker()
    ends_as_if_nothing_had_been(site, job, resumed)


@pytest.mark.slow
def test_row_19_a_supervisor_killed_in_the_call_that_renames_leaves_what_can_be_gone_on_from(
    site: Site, undisturbed: Callable[..., None], tmp_path: Path
) -> None:
    need("strace")
    undisturbed("single", 1)
    job = post(site)
    saves(site, job, EVERY)
    calls = "rename,renameat,renameat2"
    with failing_calls(site.supervisor(site.attempt(job)), calls, "signal=SIGKILL", log=tmp_path / "strace.log"):
        eventually(partial(lost_once, site, job), "its supervisor dies")
    site.reaches(job, JobState.RUNNING, attempt=2)
    last = site.attempts(job)[1].resumed
    assert last is not None
    ends_as_if_nothing_had_been(site, job, last["step"])


def _flip_a_byte(checkpoint: Path) -> None:
    victim = max(
        (path for path in checkpoint.iterdir() if path.suffix == ".safetensors"), key=lambda it: it.stat().st_size
    )
    body = bytearray(victim.read_bytes())
    body[len(body) // 2] ^= 1
    _replace(victim, bytes(body))


def _truncate_the_manifest(checkpoint: Path) -> None:
    victim = checkpoint / checkpoints.MANIFEST
    _replace(victim, victim.read_bytes()[:-20])


def _lose_a_file(checkpoint: Path) -> None:
    next(path for path in checkpoint.iterdir() if path.suffix == ".safetensors").unlink()


def _replace(path: Path, body: bytes) -> None:
    path.unlink()
    path.write_bytes(body)


DAMAGES = {"a byte": _flip_a_byte, "the manifest": _truncate_the_manifest, "a file": _lose_a_file}


def _stop_dead(site: Site, job: str) -> list[checkpoints.StoredCheckpoint]:
    """Have nothing of a job run, and nobody start it again, when two checkpoints are saved; those, newest first."""
    site.allow(losses=NOBODY_LEFT)
    saves(site, job, 2 * EVERY)
    site.kill_worker()
    kill(site, job)
    found = [kept for kept in checkpoints.list_checkpoints(directory(site, job)) if kept.step <= pointed(site, job)]
    assert len(found) == 2
    return found


@pytest.mark.parametrize("damage", ["a byte", *(pytest.param(it, marks=pytest.mark.slow) for it in list(DAMAGES)[1:])])
def test_row_19_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    site: Site, undisturbed: Callable[..., None], damage: str
) -> None:
    undisturbed("ddp", 2)
    job = post_held(site, "ddp", 2, 2 * EVERY + 5)
    newest, before = _stop_dead(site, job)
    DAMAGES[damage](newest.directory)
    site.start_worker()
    ends_as_if_nothing_had_been(site, job, before.step)
    assert f"{newest.step}" in site.text(job, 0, "service", 2)


@pytest.mark.slow
def test_row_19_a_run_without_any_sound_checkpoint_begins_anew_and_says_so(
    site: Site, undisturbed: Callable[..., None]
) -> None:
    undisturbed("single", 1)
    job = post_held(site, "single", 1, 2 * EVERY + 5)
    for kept in _stop_dead(site, job):
        _flip_a_byte(kept.directory)
    site.start_worker()
    ends_as_if_nothing_had_been(site, job, None)
    assert "first step" in site.text(job, 0, "service", 2)


# -- full disks ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_row_18_a_full_disk_costs_a_checkpoint_and_the_last_good_one_is_gone_on_from(cramped: Site) -> None:
    steps = 3 * STEPS
    reference = post(cramped, steps=steps, seconds=0.0)
    assert cramped.finished(reference, 60).state is JobState.SUCCEEDED
    cramped.allow(baselines={"saving-single": cramped.essence(reference)}, losses=NOBODY_LEFT, may_drop=True)
    job = post(cramped, steps=steps, seconds=0.05)
    saves(cramped, job, EVERY)
    filler = fill(cramped.settings.storage)
    good = pointed(cramped, job)
    at = cramped.caller.job(job)["progress"]["step"]
    eventually(lambda: cramped.caller.job(job)["progress"]["step"] > at + 2 * EVERY, "steps on a full disk")
    assert pointed(cramped, job) in (good, good + EVERY)  # one may just have been on its way
    good = pointed(cramped, job)
    cramped.kill_worker()
    processes.kill(cramped.supervisor(cramped.attempt(job)))
    filler.unlink()
    cramped.start_worker()
    ends_as_if_nothing_had_been(cramped, job, good)
    assert cramped.caller.call("GET", f"/v1/jobs/{job}/splits").status_code == 200
    cramped.is_sound()
