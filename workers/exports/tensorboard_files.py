"""Event files, as TensorBoard reads them: `tensorboard --logdir DIRECTORY`."""

from pathlib import Path

from workers.exports.run_metrics import ExportRequest, TaggedPoint


def write(request: ExportRequest, points: list[TaggedPoint], directory: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
    from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
    from tensorboard.summary.writer.event_file_writer import EventFileWriter  # type: ignore[import-untyped]

    writer = EventFileWriter(str(directory))
    for point in points:
        value = Summary.Value(tag=point.tag, simple_value=point.value)
        writer.add_event(Event(wall_time=point.at, step=point.step, summary=Summary(value=[value])))
    writer.close()
