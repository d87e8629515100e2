from pathlib import Path

from jobs.files.metric_file import MAX_POINTS, MetricWriter
from jobs.protocol.records import MetricSample
from workers.exports.run_metrics import read_points
from workers.exports.spec_values import MAX_VALUES, flat_values


def written(path: Path, *samples: MetricSample) -> Path:
    writer = MetricWriter(path)
    writer.append(samples)
    writer.seal()
    return path


def sample(name: str, device: int, step: int, value: float) -> MetricSample:
    return MetricSample(device=device, name=name, step=step, value=value, at=100.0 + step)


def test_a_metric_of_several_devices_is_one_of_each(tmp_path: Path) -> None:
    path = written(
        tmp_path / "metrics.bin", sample("loss", 0, 2, 0.5), sample("loss", 1, 1, 0.7), sample("accuracy", 0, 2, 0.9)
    )
    found = [(point.tag, point.step, point.value, point.at) for point in read_points(path)]
    assert found == [
        ("loss/device-1", 1, 0.7, 101.0),
        ("accuracy", 2, 0.9, 102.0),
        ("loss/device-0", 2, 0.5, 102.0),
    ]


def test_a_series_is_read_to_its_end(tmp_path: Path) -> None:
    count = 2 * MAX_POINTS + 1
    path = written(tmp_path / "metrics.bin", *(sample("loss", 0, step, float(step)) for step in range(count)))
    assert [point.step for point in read_points(path)] == list(range(count))


def test_values_of_a_spec_come_by_their_paths_and_not_without_bound() -> None:
    spec = {"program": {"data": {"batch_size": 64}, "args": ["--lr", "0.1"], "env": {"TOKEN": "x"}}, "name": None}
    assert flat_values(spec) == {"program.data.batch_size": 64, "program.args.0": "--lr", "program.args.1": "0.1"}
    assert len(flat_values({"labels": {str(number): "x" for number in range(2 * MAX_VALUES)}})) == MAX_VALUES
