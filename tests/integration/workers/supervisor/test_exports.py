"""Metrics as files of other tools, read by their own libraries, which are imported where they are used: it is slow."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.files import paths
from jobs.files.metric_file import read_series
from tests.integration.workers.service import Service

pytestmark = pytest.mark.integration

MEASURES = """
import shardyard

for step in range(1, 4):
    shardyard.job.log("loss", 1 / step, step=step)
    shardyard.job.log("rate", 0.1, step=step)
"""
TOOLS = ("tensorboard", "mlflow", "wandb")


def measured(service: Service, job: str) -> dict[str, list[tuple[int, float]]]:
    found = read_series(paths.metrics_file(service.files(job)))
    return {series.name: [(point.step, point.value) for point in series.points] for series in found}


def of_tensorboard(directory: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def of_mlflow(directory: Path) -> tuple[dict[str, list[tuple[int, float]]], dict[str, str]]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(directory.as_uri())
    (experiment,) = [each for each in client.search_experiments() if each.name == "shardyard"]
    (run,) = client.search_runs([experiment.experiment_id])
    histories = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: [(each.step, each.value) for each in history] for name, history in histories.items()}, run.data.params


def of_wandb(directory: Path) -> dict[str, list[tuple[int, float]]]:
    from wandb.proto import wandb_internal_pb2

    (path,) = directory.glob("wandb/offline-run-*/*.wandb")
    found: dict[str, list[tuple[int, float]]] = {}
    for data in records_of(path.read_bytes()):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.ParseFromString(data)
        items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
        for name, value in items.items():
            if not name.startswith("_"):
                found.setdefault(name, []).append((int(items["_step"]), float(value)))
    return found


def downloaded(directory: Path, target: Path) -> Path:
    """As artifacts are downloaded: files alone. MLflow reads no store that lies in a directory called artifacts."""
    for path in directory.rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(directory)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return target


def records_of(log: bytes) -> Iterator[bytes]:
    """Records of a log as LevelDB writes them: chunks with checksum, length and type, none across blocks of 32 KiB."""
    assert log.startswith(b":W&B")
    at, record = 7, b""
    while at + 7 <= len(log):
        left = 32_768 - at % 32_768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", log, at)
        record += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last chunk
            yield record
            record = b""


def test_metrics_are_written_for_each_tool_that_the_job_names(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # this process reads such files
    job = service.run_script({"train.py": MEASURES}, export=list(TOOLS), env={"HIDDEN": "from-tools"})
    assert service.ended(job).reason == "completed"
    wanted = measured(service, job)
    assert [value for _, value in wanted["loss"]] == [1, 1 / 2, 1 / 3]
    files = paths.artifacts_dir(service.files(job))
    assert {path.name for path in files.iterdir()} == {f"exported-{tool}" for tool in TOOLS}
    for name, points in of_tensorboard(files / "exported-tensorboard").items():
        assert [step for step, _ in points] == [step for step, _ in wanted[name]]
        assert [value for _, value in points] == pytest.approx([value for _, value in wanted[name]])
    metrics, params = of_mlflow(downloaded(files / "exported-mlflow", tmp_path / "runs"))
    assert metrics == wanted
    assert params["program.entrypoint"] == "train.py"
    assert "from-tools" not in str(params)
    assert of_wandb(files / "exported-wandb") == wanted
    assert "export" not in str(service.report(job)["notes"])


@pytest.mark.parametrize("left", ["os.symlink('/tmp', path)", "os.mkdir(path)"])
def test_what_the_job_left_under_that_name_is_neither_followed_nor_replaced(service: Service, left: str) -> None:
    text = f"import os\npath = os.path.join(os.environ['SHARDYARD_OUTPUT_DIR'], 'exported-tensorboard')\n{left}\n"
    job = service.run_script({"train.py": text + MEASURES}, export=["tensorboard"])
    assert service.ended(job).reason == "completed"
    found = paths.artifacts_dir(service.files(job)) / "exported-tensorboard"
    assert found.is_symlink() or not list(found.iterdir())
    assert "an artifact exported-tensorboard of its own" in str(service.report(job)["notes"])
    assert not list(service.files(job).glob("export-*")), "nothing is left of the draft"
