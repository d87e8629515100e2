"""The relay of metrics without a Redis: when it writes points, and what it does when the disk refuses."""

from pathlib import Path

import pytest

from jobs.files import metric_file, paths
from jobs.files.frame_file import FrameReader
from jobs.protocol.records import MetricSample
from workers.supervisor.telemetry.metric_relay import RETRY_SECONDS, MetricRelay


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def relay(tmp_path: Path, clock: Clock) -> MetricRelay:
    return MetricRelay(tmp_path, None, clock)


def test_points_of_a_packet_do_not_wait(tmp_path: Path, relay: MetricRelay, clock: Clock) -> None:
    relay.add_point(MetricSample(-1, "loss", 1, 0.5, clock.now))
    assert relay.next_deadline() == clock.now
    relay.flush_due(clock.now)
    (series,) = metric_file.read_series(paths.metrics_file(tmp_path))
    assert len(series.points) == 1
    assert relay.next_deadline() is None


def test_metrics_are_written_by_their_deadline_and_at_the_end(tmp_path: Path, relay: MetricRelay, clock: Clock) -> None:
    relay.add_point(MetricSample(-1, "loss", 0, 0.5, clock.now))
    deadline = relay.next_deadline()
    assert deadline is not None
    relay.flush_due(deadline)
    relay.add_point(MetricSample(-1, "loss", 1, 0.25, clock.now))
    relay.close()
    (series,) = metric_file.read_series(paths.metrics_file(tmp_path))
    assert [point.value for point in series.points] == [0.5, 0.25]


def test_many_points_that_came_together_are_written_together(tmp_path: Path, relay: MetricRelay) -> None:
    for step in range(100):
        relay.add_point(MetricSample(0, "loss", step, 1.0, 1000.0))
    relay.flush_due(1000.0)
    (series,) = metric_file.read_series(paths.metrics_file(tmp_path))
    assert len(series.points) == 100
    with FrameReader(paths.metrics_file(tmp_path)) as reader:
        assert len(list(reader.forward(reader.first()))) == 1


@pytest.mark.parametrize("claimed", [float("nan"), float("inf"), -1.0, 1e300])
def test_a_point_whose_time_cannot_be_gets_that_of_its_arrival(
    tmp_path: Path, relay: MetricRelay, clock: Clock, claimed: float
) -> None:
    relay.add_point(MetricSample(0, "loss", 0, 0.5, claimed))
    relay.close()
    assert metric_file.read_series(paths.metrics_file(tmp_path))[0].points[0].at == clock.now


def test_points_of_an_earlier_attempt_come_first_also_where_the_disk_has_no_room_for_them_yet(
    tmp_path: Path, relay: MetricRelay, clock: Clock
) -> None:
    (tmp_path / "earlier").mkdir()
    earlier = MetricRelay(tmp_path / "earlier", None, clock)
    earlier.add_point(MetricSample(-1, "loss", 1, 0.5, 999.0))
    earlier.flush()
    file = paths.metrics_file(tmp_path)
    file.symlink_to("/dev/full")
    relay.start_from(paths.metrics_file(tmp_path / "earlier"))
    relay.add_point(MetricSample(-1, "loss", 2, 0.25, 1000.0))
    file.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        relay.flush()  # a checkpoint without them would lose them
    assert not file.is_symlink()
    clock.now += RETRY_SECONDS
    relay.flush_due(clock.now)
    (series,) = metric_file.read_series(file)
    assert ([point.step for point in series.points], relay.dropped) == ([1, 2], 0)


def test_points_wait_for_a_disk_that_is_full_and_only_so_many(
    tmp_path: Path, relay: MetricRelay, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.supervisor.telemetry.metric_relay.MAX_WAITING_POINTS", 3)
    file = paths.metrics_file(tmp_path)
    file.symlink_to("/dev/full")
    for step in (1, 2):
        relay.add_point(MetricSample(-1, "loss", step, 0.5, 1000.0))
    clock.now += RETRY_SECONDS
    relay.flush_due(clock.now)
    with pytest.raises(OSError, match="No space left on device"):
        relay.flush()
    assert relay.next_deadline() == clock.now + RETRY_SECONDS
    for step in (3, 4, 5):
        relay.add_point(MetricSample(-1, "loss", step, 0.5, 1000.0))
    assert relay.dropped == 2
    relay._writer.close()  # its file is another one now
    file.unlink()
    relay.close()
    (series,) = metric_file.read_series(file)
    assert ([point.step for point in series.points], relay.dropped) == ([1, 2, 3], 2)
