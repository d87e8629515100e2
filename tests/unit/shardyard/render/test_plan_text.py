from jobs.model.spec import JobSpec, RecipeProgram
from jobs.splits.lint import lint_splits
from jobs.splits.plan import predict_splits
from shardyard.contract.responses import Plan
from shardyard.render.plan_text import PlannedJob, render_plan
from tests.support.samples.script_streams import script_spec
from tests.support.samples.specs import make_spec


def plan_of(spec: JobSpec, rows: int | None) -> str:
    prediction = predict_splits(spec, rows)
    plan = Plan(
        rows=rows,
        batch_size=spec.batch_size,
        global_batch_size=spec.global_batch_size,
        patterns=prediction.epoch,
        findings=lint_splits(spec, prediction.epoch, rows),
        notes=prediction.notes,
    )
    recipe = isinstance(spec.program, RecipeProgram)
    asked = spec.resources
    about = PlannedJob(spec.name, spec.parallelism.strategy, asked.devices, recipe, asked.nodes)
    return render_plan(plan, about, 80)


def test_a_plan_reads_as_a_table_of_steps_by_devices_with_its_findings() -> None:
    lines = plan_of(make_spec("dp", 8, 30), 100).splitlines()

    assert lines[0].endswith("nothing has run")
    assert lines[1] == "strategy dp, 8 devices; 100 rows, batch size 30, 30 over all"
    table = [line.split() for line in lines[4:8]]
    assert table[0] == ["phase", "steps", "from-to", "batch", *map(str, range(8))]
    assert table[2] == ["train", "3", "0-2", "30", "4", "4", "4", "4", "4", "4", "4", "2"]
    assert table[3] == ["train", "1", "3-3", "10", "2", "2", "2", "2", "2", "idle", "idle", "idle"]
    assert any(line.strip().startswith("[info] ragged-batch: ") for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_a_plan_over_nodes_numbers_the_devices_of_all_of_them_through() -> None:
    lines = plan_of(make_spec("ddp", 2, 10, nodes=3), 60).splitlines()

    assert lines[1].startswith("strategy ddp, 2 devices on each of 3 nodes, 6 together; 60 rows")
    assert ["phase", "steps", "from-to", "batch", *map(str, range(6))] in [line.split() for line in lines]


def test_a_plan_of_unknown_rows_says_so_and_shows_one_batch() -> None:
    text = plan_of(make_spec("ddp", 4, 30), None)

    assert "strategy ddp, 4 devices; rows not known here, batch size 30, 120 over all" in text
    assert ["train", "-", "-", "120", "30", "30", "30", "30"] in [line.split() for line in text.splitlines()]
    assert "the size of the data set is known only when it is loaded (rows)" in text


def test_a_plan_without_a_batch_says_so() -> None:
    spec = make_spec("dp", 2, 30, drop_last=True)

    assert "there is no batch at all" in plan_of(spec, 10)


def test_a_plan_whose_shards_cannot_be_known_says_so() -> None:
    text = plan_of(make_spec("dp", 2, 30, parallelism={"dim": 1}), 100)

    assert "train: 4 steps, whose rows of each device are not known" in text


def test_a_script_has_no_plan_and_the_text_says_why() -> None:
    text = plan_of(script_spec("dp", 2), None)

    assert "strategy dp, 2 devices; rows not known here, batch size not known here" in text
    assert "not known before it runs: the report of the run will show what each device got" in text
    assert "how a script uses its data is known only when it runs (patterns, rows)" in text
    assert "Findings" not in text
