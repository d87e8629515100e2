import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.model.spec import JobSpec
from jobs.model.spec_rules import parse_spec
from jobs.splits.lint import lint_splits
from jobs.splits.plan import predict_splits
from shardyard.contract.report import Finding, Pattern, describe_rows
from tests.support.samples.specs import make_spec


def planned(spec: JobSpec, rows: int | None) -> dict[str, Finding]:
    return {finding.code: finding for finding in lint_splits(spec, predict_splits(spec, rows).epoch, rows)}


def observed(rows: tuple[int, ...], steps: int = 1) -> Pattern:
    return Pattern("train", "", sum(rows), rows, False, None, None, steps, 0, steps - 1)


def followed(spec: JobSpec, suggestion: str) -> Iterator[JobSpec]:
    """Every spec that a reader of a suggestion might submit, read from its words alone."""
    suggestion = suggestion.partition(", which leaves ")[0]
    asked, _, left_out = suggestion.removeprefix("set ").partition(", and leave out ")
    changes: list[tuple[str, list[Any]]] = []
    for setting in asked.split(" and "):
        found = re.fullmatch(r"([a-z_.]+) to (.+)", setting)
        assert found is not None, suggestion
        changes.append((found[1], [json.loads(value) for value in found[2].split(" or ")]))
    for choice in range(max(len(values) for _, values in changes)):
        body = spec.model_dump(mode="json", exclude_unset=True)
        for path, values in changes:
            *parents, last = path.split(".")
            place = body
            for parent in parents:
                place = place[parent]
            place[last] = values[min(choice, len(values) - 1)]
        for path in filter(None, left_out.split(", ")):
            section, field = path.split(".")
            del body[section][field]
        yield parse_spec(json.dumps(body))


# -- what is found ---------------------------------------------------------------------------------


def test_an_even_split_has_no_finding_but_the_advice_to_use_ddp() -> None:
    assert set(planned(make_spec("dp", 3, 30), 90)) == {"ddp-would-fit-better"}
    assert planned(make_spec("dp", 3, 30, mode="forward"), 90) == {}
    assert planned(make_spec("ddp", 3, 30), 90) == {}
    assert planned(make_spec("single", 1, 30), 100) == {}


@pytest.mark.parametrize(("nodes", "devices"), [(2, 3), (3, 2)])
def test_ranks_of_all_nodes_are_counted(nodes: int, devices: int) -> None:
    spec = make_spec("ddp", devices, 10, nodes=nodes)
    assert planned(spec, 102) == {}
    found = planned(spec, 100)["sampler-padding"]
    assert found.message == "6 ranks of 17 rows read 102 rows of 100: 2 are repeats, in every epoch"


@pytest.mark.parametrize(
    ("devices", "rows", "suggestion"),
    [
        (4, 6, "set resources.devices to 3"),
        (5, 5, "set resources.nodes to 1"),
        (2, 3, "set resources.devices to 1 and resources.nodes to 1"),
    ],
)
def test_as_many_devices_as_divide_the_rows_are_suggested_and_fewer_nodes_if_need_be(
    devices: int, rows: int, suggestion: str
) -> None:
    # There are fewer rows than ranks, so drop_last would leave nothing.
    assert planned(make_spec("ddp", devices, 1, nodes=2), rows)["sampler-padding"].suggestion == suggestion


def test_the_last_batch_of_a_hundred_rows_does_not_fit_three_devices() -> None:
    found = planned(make_spec("dp", 3, 30, mode="forward"), 100)

    assert set(found) == {"ragged-last-batch"}
    assert "4, 4, 2" in found["ragged-last-batch"].message


def test_eight_devices_and_batches_of_thirty() -> None:
    found = planned(make_spec("dp", 8, 30, mode="forward"), 100)

    assert set(found) == {"ragged-batch", "ragged-last-batch", "idle-devices"}
    assert found["ragged-batch"].suggestion == "set program.data.batch_size to 24 or 32"
    assert found["idle-devices"].message.startswith("3 of 8 devices get nothing of the last batch of 10")
    assert found["idle-devices"].severity == "info"


def test_a_batch_of_nine_uses_five_of_eight_devices() -> None:
    found = planned(make_spec("dp", 8, 9), 9 * 8)

    assert found["idle-devices"].severity == "warning"
    assert "3 of 8 devices get nothing of a batch of 9: 2, 2, 2, 2, 1, 0, 0, 0" in found["idle-devices"].message
    assert found["idle-devices"].suggestion == "set program.data.batch_size to 8 or 16"
    assert "batch-smaller-than-devices" not in found


def test_a_batch_that_is_smaller_than_the_devices_is_said_to_be() -> None:
    found = planned(make_spec("dp", 8, 5), 800)

    assert "a batch of 5 cannot give a row to each of 8 devices" in found["batch-smaller-than-devices"].message
    assert found["batch-smaller-than-devices"].suggestion == "set program.data.batch_size to 8"


def test_when_no_batch_size_helps_fewer_devices_do() -> None:
    found = planned(make_spec("dp", 8, 5), 5)

    assert found["idle-devices"].suggestion == "set resources.devices to 5"


def test_padded_ranks_are_counted() -> None:
    found = planned(make_spec("ddp", 4, 30), 90)

    assert set(found) == {"sampler-padding"}
    assert "4 ranks of 23 rows read 92 rows of 90: 2 are repeats" in found["sampler-padding"].message


@pytest.mark.parametrize(("strategy", "devices", "dropped"), [("dp", 2, 10), ("ddp", 2, 40), ("ddp", 4, 100)])
def test_dropped_rows_are_counted(strategy: str, devices: int, dropped: int) -> None:
    found = planned(make_spec(strategy, devices, 30, drop_last=True), 100)

    assert f"drop_last leaves {dropped} of 100 rows" in found["dropped-rows"].message
    assert (found["dropped-rows"].severity == "warning") == (dropped == 100)


def test_ranks_with_other_numbers_of_rows_do_not_weigh_the_same() -> None:
    spec = make_spec("ddp", 3, 30)

    (finding,) = lint_splits(spec, [observed((30, 30, 30), 9), observed((30, 30, 10), 2)], None)

    assert finding.code == "uneven-mean-of-means"
    assert "in 2 steps" in finding.message
    assert "3 times" in finding.message
    assert finding.suggestion == "set program.data.drop_last to true"


def test_unequal_ranks_that_drop_the_last_batch_already_are_told_to_weight() -> None:
    spec = make_spec("ddp", 2, 30, drop_last=True)

    (finding,) = lint_splits(spec, [observed((30, 10))], None)

    assert finding.code == "uneven-mean-of-means"
    assert "weight each rank's loss" in finding.suggestion


def test_a_rank_that_had_ended_takes_no_part_in_the_mean() -> None:
    assert lint_splits(make_spec("ddp", 2, 30), [observed((30, 30)), observed((30, 0))], None) == []


def test_unequal_shards_under_dp_are_no_fault_of_the_gradient() -> None:
    assert "uneven-mean-of-means" not in planned(make_spec("dp", 3, 29), 29)


def test_an_evaluation_is_not_looked_at() -> None:
    spec = make_spec("dp", 4, 8, mode="forward")
    evaluation = msgspec.structs.replace(observed((1, 1, 0, 0)), phase="eval")

    assert lint_splits(spec, [evaluation], 80) == []


def test_rows_that_nobody_could_count_give_no_finding() -> None:
    spec = make_spec("dp", 4, 8, mode="forward")
    unknown = msgspec.structs.replace(observed((1, 1, 0, 0)), rows=(1, None, 0, 0))

    assert lint_splits(spec, [unknown, msgspec.structs.replace(unknown, rows=None)], None) == []


def test_switching_to_ddp_keeps_the_global_batch_and_drops_what_only_dp_has() -> None:
    spec = make_spec("dp", 4, 32, parallelism={"output_device": 2, "functional": True})

    suggestion = planned(spec, 64)["ddp-would-fit-better"].suggestion

    assert suggestion == (
        'set parallelism.strategy to "ddp" and program.data.batch_size to 8, '
        "and leave out parallelism.output_device, parallelism.functional"
    )


def test_findings_are_about_single_batches_where_gradients_are_accumulated() -> None:
    found = planned(make_spec("dp", 8, 5, accumulate_steps=4), 800)

    assert "a batch of 5 cannot give a row to each of 8 devices" in found["batch-smaller-than-devices"].message
    assert found["idle-devices"].message.startswith("3 of 8 devices get nothing of a batch of 5")
    assert found["batch-smaller-than-devices"].suggestion == "set program.data.batch_size to 8"
    assert set(planned(make_spec("dp", 8, 8, accumulate_steps=4), 800)) == {"ddp-would-fit-better"}


def test_what_was_observed_of_accumulated_batches_has_the_findings_of_the_plan() -> None:
    spec = make_spec("dp", 8, 5, accumulate_steps=4)

    assert lint_splits(spec, [observed((4, 4, 4, 4, 4, 0, 0, 0), 40)], 800) == list(planned(spec, 800).values())


def test_padding_is_found_under_fsdp_too() -> None:
    assert set(planned(make_spec("fsdp", 4, 30), 90)) == {"sampler-padding"}


@pytest.mark.parametrize(
    ("rows", "text"),
    [((4, 4, 2), "4, 4, 2"), ((5,) * 11 + (9,), "11 x 5, 9"), ((1, None), "1, ?"), ((0,) * 9, "9 x 0")],
)
def test_rows_are_written_short(rows: tuple[int | None, ...], text: str) -> None:
    assert describe_rows(rows) == text


# -- what is suggested -----------------------------------------------------------------------------

shared = {
    "devices": st.integers(1, 12),
    "batch_size": st.integers(1, 70),
    "drop_last": st.booleans(),
    "accumulate_steps": st.sampled_from([1, 1, 2, 3, 5]),
}
specs = st.builds(
    make_spec,
    strategy=st.sampled_from(["dp", "ddp"]),
    parallelism=st.sampled_from([{}, {"module": "block2"}]),
    **shared,
) | st.builds(make_spec, strategy=st.just("fsdp"), **shared)


@settings(max_examples=300, deadline=None)
@given(specs, st.integers(1, 400))
def test_a_suggestion_that_is_followed_makes_its_finding_go_away(spec: JobSpec, rows: int) -> None:
    for code, finding in planned(spec, rows).items():
        changes = list(followed(spec, finding.suggestion))
        assert changes
        for changed in changes:
            assert code not in planned(changed, rows)
            assert any(pattern.steps for pattern in predict_splits(changed, rows).run)


@settings(deadline=None)
@given(specs)
def test_a_suggestion_for_a_data_set_of_unknown_size_holds_for_full_batches(spec: JobSpec) -> None:
    for code, finding in planned(spec, None).items():
        for changed in followed(spec, finding.suggestion):
            assert code not in planned(changed, None)


@settings(deadline=None)
@given(
    devices=st.integers(2, 12),
    batch_size=st.integers(1, 70),
    index=st.integers(0, 11),
    rows=st.integers(1, 200),
    strategy=st.sampled_from(["dp", "ddp"]),
)
def test_a_suggestion_never_contradicts_the_rest_of_the_spec(
    devices: int, batch_size: int, index: int, rows: int, strategy: str
) -> None:
    who = {"dp": "device", "ddp": "rank"}[strategy]
    straggler = {who: index % devices, "where": "forward", "milliseconds": 5}
    only_dp = {"output_device": index % devices, "functional": True} if strategy == "dp" else {}
    spec = make_spec(strategy, devices, batch_size, parallelism=only_dp, straggler=straggler)

    for finding in planned(spec, rows).values():
        assert list(followed(spec, finding.suggestion))
