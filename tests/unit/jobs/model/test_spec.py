"""From bytes to a checked spec."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import store
from jobs.model import spec
from jobs.model.spec_rules import parse_spec
from jobs.model.validation import MAX_REPORTED_ERRORS
from shardyard.contract.errors import InvalidSpec, MalformedJson, NotSupported

MODEL = {"ref": "linear", "args": {"in_features": 5, "out_features": 2}}
DATA = {"ref": "random_vectors", "args": {"rows": 100, "features": 5}, "batch_size": 30}
FORWARD = {"mode": "forward", "model": MODEL, "data": DATA}
TRAIN = {"model": MODEL, "data": DATA, "loss": {"ref": "cross_entropy"}, "optimizer": {"ref": "sgd"}}


def parse(**fields: Any) -> spec.JobSpec:
    return parse_spec(json.dumps({"program": FORWARD} | fields))


def wrong(body: dict[str, Any] | str) -> dict[str, str]:
    """The errors of a refused spec: field -> message."""
    with pytest.raises(InvalidSpec) as caught:
        parse_spec(body if isinstance(body, str) else json.dumps({"program": FORWARD} | body))
    return {error.field: error.message for error in caught.value.fields}


# -- defaults --------------------------------------------------------------------------------------


def test_only_the_program_is_required() -> None:
    job = parse_spec(json.dumps({"program": TRAIN}))
    assert (job.pool, job.priority, job.resources.devices, job.parallelism.strategy) == ("default", 0, 1, "single")
    assert (job.recipe.mode, job.recipe.epochs, job.recipe.seed, job.observe) == ("train", 1, 0, "auto")
    assert wrong("{}") == {"program": "required, but missing"}


def test_a_job_without_a_name_gets_one_that_says_what_it_runs() -> None:
    assert parse().name == "linear-single1"
    assert parse(name="mine").name == "mine"
    long = FORWARD | {"model": {"ref": "m" * 300}}
    assert len(parse(program=long).name or "") == 200


def test_processes_and_rows_follow_the_strategy() -> None:
    for strategy, processes in (("dp", 1), ("ddp", 3)):
        job = parse(resources={"devices": 3}, parallelism={"strategy": strategy})
        assert (job.world_size, job.global_batch_size) == (processes, 30 * processes)
        job = parse(
            resources={"devices": 3}, parallelism={"strategy": strategy}, program=TRAIN | {"accumulate_steps": 4}
        )
        assert job.global_batch_size == 120 * processes


def test_nodes_multiply_devices_processes_and_rows() -> None:
    job = parse(resources={"devices": 2}, parallelism={"strategy": "ddp"})
    job = job.model_copy(update={"name": None, "resources": spec.Resources(devices=2, nodes=3)})
    assert (job.all_devices, job.world_size, job.global_batch_size) == (6, 6, 180)
    assert job.named().name == "linear-ddp2x3"


def test_a_spec_comes_back_from_the_store_as_it_was() -> None:
    job = parse(labels={"team": "vision"}, parallelism={"placement": {"embedding": "cpu", "rnn": 0}}, name="ünï")
    assert store.decode_spec(store.encode_spec(job)) == job


def test_patterns_of_files_to_keep_are_checked_and_an_empty_list_is_no_default() -> None:
    script = {"kind": "script", "bundle": f"sha256:{'0' * 64}", "entrypoint": "train.py"}
    for keep in (None, [], ["*.pt", "!tmp/"]):
        job = store.decode_spec(store.encode_spec(parse(program=script | {"keep": keep})))
        assert isinstance(job.program, spec.ScriptProgram)
        assert job.program.keep == (keep if keep is None else tuple(keep))
    refused = wrong({"program": script | {"keep": ["*.pt", "!", "a\\"]}})
    assert set(refused) == {"program.keep.1", "program.keep.2"}
    assert 'write for example "*.pt"' in refused["program.keep.1"]
    assert set(wrong({"program": script | {"keep": "*.pt"}})) == {"program.keep"}
    assert set(wrong({"limits": {"artifact_bytes": 5}})) == {"limits.artifact_bytes"}  # a recipe


# -- unknown fields --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("character", "named"),
    [
        ("\u202e", "U+202E (RIGHT-TO-LEFT OVERRIDE)"),
        ("\u200f", "U+200F (RIGHT-TO-LEFT MARK)"),
        ("\u2066", "U+2066 (LEFT-TO-RIGHT ISOLATE)"),
        ("\ufeff", "U+FEFF"),
        ("\u2028", "U+2028"),
        ("\x9b", "U+009B"),
        ("\x1b", "U+001B"),
        ("\n", "U+000A"),
    ],
)
def test_a_name_with_what_a_screen_obeys_is_refused_with_its_field_and_the_character(
    character: str, named: str
) -> None:
    hostile = f"a{character}b"
    program: dict[str, Any] = {"kind": "script", "bundle": "sha256:" + "0" * 64, "entrypoint": "train.py"}
    bodies: dict[str, dict[str, Any]] = {
        "name": {"name": hostile},
        "labels.team": {"labels": {"team": hostile}},
        "program.keep.1": {"program": program | {"keep": ["*.pt", hostile]}},
    }
    for field, body in bodies.items():
        found = wrong(body)
        assert list(found) == [field]
        assert named in found[field]
        assert found[field].isprintable()
    if character > "\x7f":
        assert list(wrong({"program": program | {"entrypoint": hostile, "workdir": hostile}})) == [
            "program.entrypoint",
            "program.workdir",
        ]


def test_text_of_the_program_itself_may_have_any_character_but_nul() -> None:
    program = {"kind": "script", "bundle": "sha256:" + "0" * 64, "entrypoint": "train.py"}
    text = "two\nlines \u202e\x1b"
    spec = parse(program=program | {"args": [text], "env": {"PROMPT": text}}, name="größe שלום 👩\u200d🔬")
    assert spec.program.model_dump()["args"] == (text,)


def test_a_stored_spec_with_such_a_name_is_read_as_it_was_written() -> None:
    old = spec.JobSpec.model_validate({"program": FORWARD, "name": "gpj\u202eexe", "labels": {"k": "\u200f"}})
    assert store.decode_spec(store.encode_spec(old)) == old


def test_an_unknown_field_is_refused_with_the_name_that_was_probably_meant() -> None:
    assert wrong({"naem": "x"}) == {"naem": "unknown field; did you mean 'name'?"}
    assert wrong({"limits": {"wall_second": 1}}) == {
        "limits.wall_second": "unknown field; did you mean 'wall_seconds'?"
    }
    program = TRAIN | {"data": DATA | {"batchsize": 3}, "evaluate": {"data": {"ref": "digits", "num_worker": 0}}}
    assert wrong({"program": program}) == {
        "program.data.batchsize": "unknown field; did you mean 'batch_size'?",
        "program.evaluate.data.num_worker": "unknown field; did you mean 'num_workers'?",
    }


def test_an_unknown_field_like_no_other_gets_the_list_of_known_ones() -> None:
    assert wrong({"resources": {"zzz": 1}}) == {"resources.zzz": "unknown field; known fields here: devices, nodes"}


def slow(strategy: str, program: dict[str, Any] = TRAIN, **who: Any) -> dict[str, Any]:
    """A job on one device that is slow on purpose."""
    straggler = {"where": "forward", "milliseconds": 5} | who
    return {"parallelism": {"strategy": strategy}, "program": program | {"straggler": straggler}}


# -- rules that join fields ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"resources": {"devices": 2}}, "resources.devices"),
        ({"parallelism": {"dim": 1}}, "parallelism.dim"),
        ({"parallelism": {"functional": True}}, "parallelism.functional"),
        ({"parallelism": {"strategy": "ddp", "dim": 1}}, "parallelism.dim"),
        ({"parallelism": {"strategy": "ddp", "functional": True}}, "parallelism.functional"),
        (
            {"parallelism": {"strategy": "ddp", "output_device": 1}, "resources": {"devices": 2}},
            "parallelism.output_device",
        ),
        (
            {"parallelism": {"strategy": "dp", "output_device": 2}, "resources": {"devices": 2}},
            "parallelism.output_device",
        ),
        ({"parallelism": {"strategy": "dp", "placement": {"rnn": 0}}}, "parallelism.placement"),
        ({"parallelism": {"strategy": "ddp", "placement": {"rnn": "cpu"}}}, "parallelism.placement"),
        ({"parallelism": {"module": "block"}}, "parallelism.module"),
        ({"parallelism": {"backend": "gloo"}}, "parallelism.backend"),
        ({"parallelism": {"strategy": "dp", "backend": "nccl"}}, "parallelism.backend"),
        ({"parallelism": {"placement": {"rnn": 1}}}, "parallelism.placement.rnn"),
        ({"program": {k: v for k, v in TRAIN.items() if k != "loss"}}, "program.loss"),
        ({"program": {k: v for k, v in TRAIN.items() if k != "optimizer"}}, "program.optimizer"),
        ({"program": TRAIN | {"mode": "forward", "optimizer": None}}, "program.loss"),
        ({"program": TRAIN | {"mode": "forward", "loss": None}}, "program.optimizer"),
        ({"program": FORWARD | {"evaluate": {"data": {"ref": "digits"}}}}, "program.evaluate"),
        ({"program": FORWARD | {"scheduler": {"ref": "step_lr"}}}, "program.scheduler"),
        ({"program": FORWARD | {"clip_grad_norm": 1.0}}, "program.clip_grad_norm"),
        ({"program": FORWARD | {"accumulate_steps": 2}}, "program.accumulate_steps"),
        ({"program": FORWARD | {"checkpoint": {"every_steps": 1}}}, "program.checkpoint"),
        ({"parallelism": {"strategy": "fsdp", "module": "block"}}, "parallelism.module"),
        (slow("single"), "program.straggler"),
        (slow("fsdp"), "program.straggler"),
        (slow("dp"), "program.straggler.device"),
        (slow("ddp"), "program.straggler.rank"),
        (slow("dp", rank=0), "program.straggler.rank"),
        (slow("ddp", device=0), "program.straggler.device"),
        (slow("dp", device=1), "program.straggler.device"),
        (slow("ddp", rank=1), "program.straggler.rank"),
        (slow("dp", FORWARD, device=0, where="backward"), "program.straggler.where"),
    ],
)
def test_a_contradiction_names_the_field_to_change(fields: dict[str, Any], field: str) -> None:
    assert list(wrong(fields)) == [field]


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("single", 'one process runs all of strategy "single"'),
        ("dp", "one process drives all devices of dp; use ddp"),
    ],
)
def test_a_strategy_of_one_process_runs_on_one_node(strategy: str, words: str) -> None:
    found = wrong({"resources": {"nodes": 2}, "parallelism": {"strategy": strategy}})
    assert list(found) == ["resources.nodes"]
    assert words in found["resources.nodes"]


def test_a_job_has_no_more_devices_on_many_nodes_than_on_one() -> None:
    found = wrong({"resources": {"devices": 64, "nodes": 17}, "parallelism": {"strategy": "ddp"}})
    assert found == {"resources.nodes": "17 nodes of 64 devices have 1088; a job has at most 1024"}


def test_every_contradiction_is_named_at_once() -> None:
    found = wrong({"parallelism": {"dim": 1, "module": "a", "backend": "gloo"}, "resources": {"devices": 2}})
    assert set(found) == {
        "resources.devices",
        "parallelism.dim",
        "parallelism.module",
        "parallelism.backend",
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"resources": {"devices": 2}, "parallelism": {"placement": {"embedding": "cpu", "rnn": 1}}},
        {"resources": {"devices": 2}, "parallelism": {"strategy": "dp", "dim": 1, "output_device": 1}},
        {"resources": {"devices": 2}, "parallelism": {"strategy": "dp", "functional": True, "module": "a.0.b"}},
        {"resources": {"devices": 2}, "parallelism": {"strategy": "ddp", "backend": "gloo", "module": "block2"}},
        {"parallelism": {"strategy": "dp"}},
        {"program": TRAIN | {"evaluate": {"data": {"ref": "digits"}}}},
        {"program": TRAIN | {"scheduler": {"ref": "step_lr", "every": "step"}, "clip_grad_norm": 1}},
        {"program": TRAIN | {"accumulate_steps": 4, "precision": "float16"}},
        {"program": FORWARD | {"precision": "bfloat16"}},
        {"parallelism": {"strategy": "fsdp", "backend": "gloo"}, "resources": {"devices": 4}},
        {"parallelism": {"strategy": "ddp"}, "resources": {"devices": 4, "nodes": 2}},
        {"parallelism": {"strategy": "fsdp"}, "resources": {"nodes": 1024}},
        slow("dp", device=0, where="backward"),
        slow("ddp", FORWARD, rank=0, where="input"),
    ],
)
def test_what_fits_together_is_taken(fields: dict[str, Any]) -> None:
    assert parse(**fields)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"parallelism": {"strategy": "fsdp"}, "program": TRAIN | {"precision": "float16"}}, "program.precision"),
    ],
)
def test_what_this_version_does_not_do_is_refused_as_such(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(NotSupported) as caught:
        parse(**fields)
    assert [error.field for error in caught.value.fields] == [field]


# -- limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [
        ("resources.devices", 1, spec.MAX_DEVICES),
        ("priority", -100, 100),
        ("limits.max_retries", 0, 100),
        ("limits.wall_seconds", 1, 31_536_000),
        ("program.epochs", 1, 1_000_000),
        ("program.max_steps", 1, 10**12),
        ("program.seed", 0, 2**63 - 1),
        ("program.data.batch_size", 1, 1_000_000),
        ("program.data.num_workers", 0, 64),
        ("program.accumulate_steps", 1, 65_536),
    ],
)
def test_numbers_have_limits_and_their_type_is_strict(field: str, least: int, most: int) -> None:
    def body(value: Any) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(json.dumps({"program": TRAIN, "parallelism": {"strategy": "dp"}}))
        *path, last = field.split(".")
        at = fields
        for part in path:
            at = at.setdefault(part, {})
        at[last] = value
        return fields

    for good in (least, most):
        assert parse(**body(good))
    bads: tuple[Any, ...] = (least - 1, most + 1, str(most), True, [most], {}, 10**4000, -(10**4000))
    for bad in bads:
        assert list(wrong(body(bad))) == [field]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": "line\nbreak"}, "name"),
        ({"name": "end\n"}, "name"),
        ({"pool": "Upper"}, "pool"),
        ({"pool": "a:b"}, "pool"),
        ({"pool": "x" * 64}, "pool"),
        ({"labels": {"": "x"}}, "labels."),
        ({"labels": {"k": "x" * 256}}, "labels.k"),
        ({"labels": {"k": 1}}, "labels.k"),
        ({"labels": {f"k{i}": "x" for i in range(33)}}, "labels"),
        ({"program": FORWARD | {"model": {"ref": "../etc/passwd"}}}, "program.model.ref"),
        ({"program": FORWARD | {"model": {"ref": "a:b:c"}}}, "program.model.ref"),
        ({"program": FORWARD | {"model": MODEL | {"args": {f"a{i}": 0 for i in range(65)}}}}, "program.model.args"),
        ({"parallelism": {"strategy": "dp", "module": "a..b"}}, "parallelism.module"),
        ({"parallelism": {"strategy": "magic"}}, "parallelism.strategy"),
        ({"parallelism": {"placement": {"rnn": "gpu"}}}, "parallelism.placement.rnn"),
        ({"parallelism": {"placement": {"rnn": -1}}}, "parallelism.placement.rnn"),
        ({"parallelism": {"placement": {"rnn": True}}}, "parallelism.placement.rnn"),
        ({"parallelism": {"placement": {"rnn": None}}}, "parallelism.placement.rnn"),
        ({"parallelism": {"strategy": "dp", "dim": 9}}, "parallelism.dim"),
        ({"observe": "sometimes"}, "observe"),
    ],
)
def test_a_value_outside_its_limits_has_one_error_at_its_own_path(fields: dict[str, Any], field: str) -> None:
    assert list(wrong(fields)) == [field]


# -- hostile bodies --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "nonsense",
        "{'program': 1}",
        '{"program": {}} trailing',
        b"\xff\xfe",
        b"\x00",
        '{"name": "\\ud800"}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"priority": ' + "9" * 5000 + "}",
    ],
)
def test_a_body_that_is_not_json_is_said_to_be_malformed(body: str | bytes) -> None:
    with pytest.raises(MalformedJson, match="not valid JSON"):
        parse_spec(body)


@pytest.mark.parametrize("body", ["[]", "null", "3", '"x"', "true", "NaN"])
def test_a_body_that_is_no_object_is_refused(body: str) -> None:
    assert "an object, { ... }" in wrong(body)["(body)"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "[[NaN]]", '{"deep": [1e999]}'])
def test_numbers_that_json_cannot_carry_are_refused_wherever_they_hide(number: str) -> None:
    body = json.dumps({"program": FORWARD}).replace('"in_features": 5', f'"in_features": {number}')
    assert "not a finite number" in wrong(body)["program.model.args"]
    if number[0] not in "[{":
        assert list(wrong(f'{{"program": {json.dumps(FORWARD)}, "limits": {{"wall_seconds": {number}}}}}'))


def test_a_key_that_is_given_twice_is_refused_wherever_it_is() -> None:
    body = f'{{"priority": 1, "program": {json.dumps(FORWARD)}, "priority": 2}}'
    assert "more than once" in wrong(body)["priority"]
    inner = json.dumps({"program": FORWARD}).replace('"in_features": 5', '"in_features": 5, "in_features": 5')
    assert list(wrong(inner)) == ["program.model.args.in_features"]
    both = f'{{"priority": 1000, "program": {json.dumps(FORWARD)}, "priority": 1000, "nmae": "x"}}'
    assert sorted(wrong(both)) == ["nmae", "priority"]


def test_arguments_as_deep_and_as_large_as_a_body_may_carry_survive_the_store() -> None:
    for value in ("[" * 197 + "]" * 197, "9" * 4000, '"' + "x" * 500_000 + '"'):
        job = parse_spec(json.dumps({"program": FORWARD}).replace('"in_features": 5', f'"in_features": {value}'))
        assert store.decode_spec(store.encode_spec(job)) == job


def test_errors_are_bounded_in_number_and_in_length() -> None:
    many = {f"k{i}": 1 for i in range(1000)}
    for body in (many, {"labels": {"a" * 10_000 + str(i): 1 for i in range(1000)}}):
        with pytest.raises(InvalidSpec, match="the first 20 of") as caught:
            parse(**body)
        assert len(caught.value.fields) == MAX_REPORTED_ERRORS
        assert all(len(error.field) + len(error.message) < 1000 for error in caught.value.fields)
    with pytest.raises(InvalidSpec, match="the first 20 of 200") as caught:
        parse(parallelism={"placement": {f"m{i}": 7 for i in range(200)}})
    assert len(caught.value.fields) == MAX_REPORTED_ERRORS


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted(spec.JobSpec.model_fields)


@given(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4), st.booleans())
def test_any_json_gives_a_spec_that_survives_the_store_or_an_error_of_ours(fields: dict[str, Any], whole: bool) -> None:
    body = json.dumps(({"program": FORWARD} if whole else {}) | fields)
    try:
        job = parse_spec(body)
    except (InvalidSpec, MalformedJson):
        return
    assert store.decode_spec(store.encode_spec(job)) == job


# -- secrets ---------------------------------------------------------------------------------------

BUNDLE = f"sha256:{'0' * 64}"
SCRIPT = {"kind": "script", "bundle": BUNDLE, "entrypoint": "train.py"}


def test_secrets_are_named_by_scripts_and_by_recipes_with_code_of_their_own() -> None:
    secrets = {"HF_TOKEN": "hf", "WANDB_API_KEY": "W.and_B-1"}
    assert parse(program=SCRIPT | {"secrets": secrets}).secrets == secrets
    assert parse(program=FORWARD | {"bundle": BUNDLE, "secrets": secrets}).secrets == secrets
    assert wrong({"program": FORWARD | {"secrets": secrets}}) == {
        "program.secrets": "only for code of your own: without a bundle no code of yours runs; leave it out"
    }


def test_a_spec_without_secrets_is_one_that_an_earlier_version_can_read() -> None:
    for program in (SCRIPT, FORWARD):
        assert b"secrets" not in parse(program=program).as_json
        assert parse(program=program).secrets == {}


def test_a_variable_gets_its_value_in_one_way_only_and_not_where_the_service_sets_it() -> None:
    program = SCRIPT | {"env": {"A": "1", "B": "2"}, "secrets": {"B": "b", "RANK": "r", "SHARDYARD_X": "x"}}
    reserved = "{} is reserved, because the service sets it for each rank; leave it out"
    assert wrong({"program": program}) == {
        "program.secrets.B": "program.env sets B as well; leave it out in one of them",
        "program.secrets.RANK": reserved.format("RANK"),
        "program.secrets.SHARDYARD_X": reserved.format("SHARDYARD_X"),
    }
    recipe = FORWARD | {"bundle": BUNDLE, "secrets": {"PYTHONPATH": "p"}}
    assert wrong({"program": recipe}) == {"program.secrets.PYTHONPATH": reserved.format("PYTHONPATH")}


@pytest.mark.parametrize("secrets", [{"1A": "a"}, {"A": "-a"}, {"A": ""}, {"A": "x" * 64}, {"A": "a b"}, {"A": 1}])
def test_names_of_variables_and_secrets_have_their_form(secrets: dict[str, Any]) -> None:
    (field,) = wrong({"program": SCRIPT | {"secrets": secrets}})
    assert field.startswith("program.secrets.")


def test_a_job_has_so_many_secrets_at_most() -> None:
    assert len(parse(program=SCRIPT | {"secrets": {f"A{n}": "a" for n in range(32)}}).secrets) == 32
    assert [*wrong({"program": SCRIPT | {"secrets": {f"A{n}": "a" for n in range(33)}}})] == ["program.secrets"]


def test_a_secret_that_torch_reads_at_import_starts_cold() -> None:
    assert parse(program=SCRIPT | {"secrets": {"HF_TOKEN": "hf"}}).start == "warm"
    assert parse(program=SCRIPT | {"secrets": {"TORCH_HOME": "home"}}).start == "cold"
