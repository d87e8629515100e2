"""Slow devices, slow input, slow communication: planted ones are named with their cause, and quiet runs have none."""

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from jobs.protocol.probe_records import LoaderOpened
from jobs.protocol.records import Outline
from jobs.splits.findings.time_findings import CODES
from jobs.splits.weight_use import fitting_rows
from shardyard.contract.report import Finding
from tests.support.samples import script_streams
from tests.support.samples.record_streams import aggregator, split, step
from tests.support.samples.specs import make_spec
from tests.support.samples.timed_streams import Machine, Plant, ddp_run, dp_run
from workers.supervisor.report.leased_devices import LeasedDevice
from workers.supervisor.report.recipe_aggregator import RecipeAggregator

#: Devices that are alike, as those of one server are.
EVEN = Machine(drift=0.005)
RUNS: dict[str, tuple[Callable[..., RecipeAggregator], int]] = {
    "ddp on 2": (ddp_run, 2),
    "ddp on 4": (ddp_run, 4),
    "dp on 3": (dp_run, 3),
}
CAUSES = {"wait": "input", "forward": "compute", "backward": "compute"}


def found(told: RecipeAggregator, *, final: bool = True) -> list[Finding]:
    return [finding for finding in told.make_report(final=final).findings if finding.code in CODES]


@functools.cache
def found_in_quiet_run(name: str) -> list[Finding]:
    run, devices = RUNS[name]
    return found(run(devices, 500, 7, None, EVEN))


@pytest.mark.parametrize("share", [0.1, *(pytest.param(share, marks=pytest.mark.slow) for share in (0.2, 0.5))])
@pytest.mark.parametrize("part", CAUSES)
@pytest.mark.parametrize("name", RUNS)
def test_a_planted_slow_device_is_named_with_its_cause_and_its_twin_is_not(name: str, part: str, share: float) -> None:
    run, devices = RUNS[name]
    (finding,) = found(run(devices, 500, 7, Plant(1, part, share), EVEN))

    assert (finding.code, finding.numbers["device"]) == ("slow-device", 1)
    assert f"(cause: {CAUSES[part]})" in finding.message
    assert "from the beginning on" in finding.message
    assert finding.numbers["ratio"] == pytest.approx(1 + share * EVEN.step_ms / 17.4, rel=0.05)
    assert finding.severity == ("warning" if finding.numbers["ratio"] >= 1.2 else "info")
    lost = 500 * share * EVEN.step_ms * (devices - 1) / 1000
    assert finding.cost_device_seconds == pytest.approx(lost, rel=0.4)
    assert found_in_quiet_run(name) == []


@pytest.mark.parametrize("name", RUNS)
def test_a_device_that_became_slow_is_told_from_one_that_always_was(name: str) -> None:
    run, devices = RUNS[name]
    (finding,) = found(run(devices, 1000, 3, Plant(0, "forward", 0.5, since=600), EVEN), final=False)

    assert finding.numbers["since_step"] == pytest.approx(600, abs=40)
    assert "since step" in finding.message


def test_a_slow_device_is_named_from_the_twentieth_step_on() -> None:
    slow = replace(EVEN, forward=60.0, backward=110.0)
    assert found(ddp_run(2, 19, 0, Plant(1, "forward", 0.9), slow), final=False) == []
    assert [one.code for one in found(ddp_run(2, 20, 0, Plant(1, "forward", 0.9), slow), final=False)] == [
        "slow-device"
    ]


def test_hiccups_that_strike_one_device_and_then_another_are_no_finding() -> None:
    machine = replace(EVEN, hiccups=0.05)
    assert found(ddp_run(2, 400, 1, None, machine)) == []


def test_a_device_that_is_many_times_slower_is_named_though_hiccups_strike_its_peers() -> None:
    machine = replace(EVEN, hiccups=0.2)
    runs = [found(ddp_run(2, 40, seed, Plant(1, "backward", 20.0), machine)) for seed in range(16)]
    assert [[finding.numbers["device"] for finding in findings] for findings in runs] == [[1]] * len(runs)


@pytest.mark.parametrize("block", range(4))
def test_quiet_runs_have_no_finding_about_time(block: int) -> None:
    for seed in range(20 * block, 20 * (block + 1)):
        chance = random.Random(seed)
        machine = Machine(
            wait=0.05,
            forward=chance.uniform(0.2, 8),
            backward=chance.uniform(0.4, 15),
            comm=chance.uniform(0.1, 1),
            optimizer=0.3,
            spread=chance.choice([0.05, 0.15, 0.3]),
            drift=chance.choice([0.01, 0.02]),
            hiccups=chance.choice([0, 0.005, 0.02]),
        )
        run, devices = chance.choice(list(RUNS.values()))
        assert found(run(devices, chance.choice([25, 60, 200]), seed, None, machine)) == [], seed


#: Four ranks on two cores: what one of them gets of these varies.
CROWDED = Machine(wait=0.1, forward=0.2, backward=2.0, comm=6.0, optimizer=0.2, spread=0.8, hiccups=0.1)


def test_a_backward_that_is_measured_in_every_hundredth_step_is_not_taken_for_many() -> None:
    runs = [found(ddp_run(4, 800, seed, None, CROWDED, backward_every=100)) for seed in range(2)]
    assert runs == [[]] * len(runs)


def test_a_backward_that_is_long_whenever_it_is_measured_is_slow() -> None:
    slow = replace(CROWDED, spread=0.1, hiccups=0.0)
    (finding,) = found(ddp_run(4, 800, 1, Plant(3, "backward", 0.3), slow, backward_every=100))

    assert (finding.code, finding.numbers["device"]) == ("slow-device", 3)


def test_one_backward_that_was_measured_is_no_slow_device() -> None:
    runs = [found(ddp_run(2, steps, 5, Plant(1, "backward", 5.0), EVEN)) for steps in (29, 40)]
    assert [[finding.code for finding in findings] for findings in runs] == [[], ["slow-device"]]


@pytest.mark.parametrize(("spread", "codes"), [(0.1, ["communication-bound"]), (2.0, [])])
def test_ranks_on_virtual_devices_that_wait_for_a_core_do_not_communicate(spread: float, codes: list[str]) -> None:
    machine = replace(EVEN, forward=2.0, backward=4.0, comm=30.0, spread=spread)
    assert [one.code for one in found(ddp_run(4, 200, 0, None, machine)) if one.code != "slow-device"] == codes


def test_a_run_that_waits_for_its_input_says_how_many_loaders_would_keep_up() -> None:
    (finding,) = found(ddp_run(2, 300, 0, None, replace(EVEN, wait=50.0)))

    assert (finding.code, finding.severity) == ("input-bound", "warning")
    assert finding.numbers["num_workers"] == 0
    assert finding.numbers["num_workers_needed"] == 3  # 50 ms for a batch, and 20 ms for the rest of a step
    assert finding.suggestion == "set program.data.num_workers to 3 (now 0), or make a batch cheaper"


def test_communication_that_nothing_hides_is_found() -> None:
    (finding,) = found(ddp_run(4, 300, 0, None, replace(EVEN, comm=20.0), kind="cuda"))

    assert (finding.code, finding.severity) == ("communication-bound", "warning")
    assert finding.numbers["share"] == pytest.approx(0.5, abs=0.06)
    assert found(ddp_run(4, 300, 0, None, replace(EVEN, comm=1.0), kind="cuda")) == []


def test_copying_that_takes_longer_than_dividing_wins_is_found() -> None:
    (finding,) = found(dp_run(3, 300, 0, None, replace(EVEN, comm=80.0)))

    assert finding.code == "more-devices-are-slower"
    assert finding.numbers["devices_ms"] > finding.numbers["one_device_ms"]
    assert "one device would need" in finding.message


def test_communication_says_how_many_bytes_it_moves_and_how_fast() -> None:
    run = ddp_run(4, 300, 0, None, replace(EVEN, comm=20.0), kind="cuda")
    for rank in range(4):
        run.add_record(rank, Outline(1, None, None, 8, None, gradient_bytes=40_000_000))
    (finding,) = found(run)

    assert finding.numbers["bytes"] == 40_000_000
    assert finding.numbers["bytes_per_second"] == pytest.approx(2e9, rel=0.05)  # in 20 ms
    assert "the gradients of a rank are 38.1 MiB, which makes 1." in finding.message


def test_a_device_with_fewer_rows_is_not_slow_because_each_of_them_takes_longer() -> None:
    told = aggregator(make_spec("ddp", 3, 10), None)
    for rank, rows in enumerate((10, 10, 2)):
        told.add_record(rank, split(0, [rank], [rows]))
        for number in range(200):
            told.add_record(rank, step(number, [0], [rows], forward_ms=(10.0 + rows,), backward_ms=(20.0,)))
    assert found(told) == []


@pytest.mark.parametrize("slow_ms", [0.0, 30.0])
def test_a_script_has_the_same_findings(slow_ms: float) -> None:
    script = script_streams.told("ddp", 2)
    for rank in range(2):
        waits = slow_ms if rank else 0.4
        steps = [step(number, [0], [8], data_wait_ms=waits, forward_ms=(6.0,)) for number in range(100)]
        script_streams.feed(script, [script_streams.joined(rank, 2), split(0, [rank], [8]), *steps], rank)
    slow = [one for one in script.make_report(final=False).findings if one.code in CODES]

    assert [one.code for one in slow] == (["slow-device"] if slow_ms else [])
    assert all("the batches of rank 1 slow" in one.suggestion for one in slow)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_script_that_waits_for_its_input_is_told_how_many_workers_it_has(workers: int) -> None:
    script = script_streams.told("ddp", 2)
    for rank in range(2):
        steps = [step(number, [0], [8], data_wait_ms=30.0, forward_ms=(20.0,), cycle_ms=50.0) for number in range(100)]
        opened = [LoaderOpened(0, workers), LoaderOpened(1, workers)]
        script_streams.feed(script, [script_streams.joined(rank, 2), *opened, split(0, [rank], [8]), *steps], rank)
    (finding,) = [one for one in script.make_report(final=False).findings if one.code == "input-bound"]

    needed = {0: 2, 2: 5}[workers]  # 30 ms for a batch, or 100 ms of two processes, and 20 ms for the rest of a step
    fewer = {0: "", 2: "; if its rows are in memory anyway, try 0, too"}[workers]
    assert finding.suggestion == (
        f"set num_workers in the DataLoader to {needed} (now {workers}), or make a batch cheaper{fewer}"
    )
    assert finding.numbers["num_workers"] == workers


def test_loaders_with_different_numbers_of_workers_get_no_number() -> None:
    script = script_streams.told("ddp", 2)
    for rank in range(2):
        steps = [step(number, [0], [8], data_wait_ms=30.0, forward_ms=(20.0,), cycle_ms=50.0) for number in range(100)]
        opened = [LoaderOpened(0, 0), LoaderOpened(1, 4)]
        script_streams.feed(script, [script_streams.joined(rank, 2), *opened, split(0, [rank], [8]), *steps], rank)
    (finding,) = [one for one in script.make_report(final=False).findings if one.code == "input-bound"]
    assert "num_workers" not in finding.numbers


# -- several nodes, and cards of different kinds ---------------------------------------------------


def placed(*names: str, nodes: Sequence[str] = ("host-a",)) -> list[LeasedDevice]:
    """GPUs of these names, divided evenly among nodes."""
    each = len(names) // len(nodes)
    return [
        LeasedDevice(index, f"GPU-{index}", nodes[index // each], "cuda", name, 16 << 30)
        for index, name in enumerate(names)
    ]


TWO_NODES = placed(*["NVIDIA L4"] * 4, nodes=("host-a", "host-b"))


@pytest.mark.parametrize(("part", "cause"), [("forward", "compute"), ("wait", "input")])
def test_a_node_all_of_whose_devices_are_slow_is_named_once(part: str, cause: str) -> None:
    (finding,) = found(ddp_run(4, 400, 5, Plant(2, part, 0.5, others=(3,)), EVEN, leased=TWO_NODES))

    assert (finding.code, finding.severity) == ("slow-node", "warning")
    assert "all 2 devices on host-b take" in finding.message
    assert f"(cause: {cause})" in finding.message
    assert finding.numbers["devices"] == 2
    assert finding.numbers["ratio"] == pytest.approx(1 + 0.5 * EVEN.step_ms / 17.4, rel=0.05)
    assert finding.suggestion.startswith("check host-b for other programs")
    assert found(ddp_run(4, 400, 5, None, EVEN, leased=TWO_NODES)) == []


def test_a_slow_virtual_node_is_named_like_a_host() -> None:
    virtual = [LeasedDevice(index, f"cpu:{index % 2}", f"vm-{1 + index // 2}", "cpu", "virtual") for index in range(4)]
    (finding,) = found(ddp_run(4, 400, 5, Plant(0, "forward", 0.5, others=(1,)), EVEN, leased=virtual))

    assert finding.code == "slow-node"
    assert "all 2 devices on vm-1 take" in finding.message
    assert found(ddp_run(4, 400, 5, None, EVEN, leased=virtual)) == []


def test_a_slow_device_of_a_node_whose_other_devices_are_not_is_no_slow_node() -> None:
    (finding,) = found(ddp_run(4, 400, 5, Plant(3, "forward", 0.5), EVEN, leased=TWO_NODES))
    assert (finding.code, finding.numbers["device"]) == ("slow-device", 3)


def test_slow_devices_on_two_nodes_are_no_slow_node() -> None:
    slow = found(ddp_run(4, 400, 5, Plant(1, "forward", 0.5, others=(3,)), EVEN, leased=TWO_NODES))
    assert {finding.code for finding in slow} == {"slow-device"}


UNLIKE = placed("NVIDIA A100-SXM4-40GB", "Tesla T4")


@pytest.mark.parametrize("part", ["forward", "backward"])
def test_cards_of_different_kinds_are_told_from_a_slow_device(part: str) -> None:
    slower = Plant(1, part, 0.5)
    (finding,) = found(ddp_run(2, 400, 2, slower, EVEN, leased=UNLIKE))

    assert (finding.code, finding.severity) == ("unlike-devices", "info")
    assert "Tesla T4 (device 1) takes 1.6" in finding.message
    assert "NVIDIA A100-SXM4-40GB (device 0)" in finding.message
    assert "of the 16 rows of a step these could take 10, 6, in" in finding.suggestion
    assert finding.numbers["ratio"] == pytest.approx(1.6, rel=0.05)
    assert finding.cost_device_seconds is not None
    assert found(ddp_run(2, 400, 2, None, EVEN, leased=UNLIKE)) == []
    assert [one.code for one in found(ddp_run(2, 400, 2, slower, EVEN, kind="cuda"))] == ["slow-device"]


def test_another_card_that_waits_for_its_input_or_became_slow_is_a_slow_device() -> None:
    (waits,) = found(ddp_run(2, 400, 2, Plant(1, "wait", 0.5), EVEN, leased=UNLIKE))
    (became,) = found(ddp_run(2, 1000, 2, Plant(1, "forward", 0.5, since=600), EVEN, leased=UNLIKE))
    assert (waits.code, became.code) == ("slow-device", "slow-device")


def test_a_card_that_is_slower_than_others_of_its_kind_is_named_beside_them() -> None:
    told = aggregator(make_spec("ddp", 4, 8), None, leased=placed("A100", "A100", "T4", "T4"))
    for rank, forward_ms in enumerate((10.0, 10.0, 16.0, 30.0)):
        told.add_record(rank, split(0, [rank], [8]))
        for number in range(400):
            told.add_record(rank, step(number, [0], [8], forward_ms=(forward_ms,), backward_ms=(2.0,)))
    assert [(one.code, one.numbers.get("device")) for one in found(told)] == [
        ("slow-device", 3),
        ("unlike-devices", None),
    ]


@pytest.mark.parametrize(
    ("rows", "per_row", "parts"),
    [(50, [2.0, 3.0], [30, 20]), (16, [1.0, 1.6], [10, 6]), (3, [1.0, 1.0, 50.0], [1, 1, 1]), (1, [1.0, 2.0], [1, 0])],
)
def test_rows_are_divided_by_speed(rows: int, per_row: list[float], parts: list[int]) -> None:
    assert list(fitting_rows(rows, per_row)) == parts
