"""A run in a store of files, as MLflow reads them: `mlflow ui --backend-store-uri file:DIRECTORY`."""

import os
from pathlib import Path

from workers.exports.run_metrics import ExportRequest, TaggedPoint
from workers.exports.spec_values import flat_values

#: As MLflow takes them in one call, and what it takes as the value of a parameter.
BATCH, PARAMETERS, CHARACTERS = 1000, 100, 500


def write(request: ExportRequest, points: list[TaggedPoint], directory: Path) -> None:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # newer versions prefer a database, and want a word for files
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    client = MlflowClient(directory.as_uri())
    experiment = client.create_experiment("shardyard")
    tags = {"shardyard.job": request.job, "shardyard.attempt": str(request.attempt)}
    first = min((point.at for point in points), default=0.0)
    run = client.create_run(experiment, int(first * 1000), tags, request.name or request.job).info.run_id
    values = [Param(name, str(value)[:CHARACTERS]) for name, value in flat_values(request.spec).items()]
    for at in range(0, len(values), PARAMETERS):
        client.log_batch(run, params=values[at : at + PARAMETERS])
    metrics = [Metric(point.tag, point.value, int(point.at * 1000), point.step) for point in points]
    for at in range(0, len(metrics), BATCH):
        client.log_batch(run, metrics=metrics[at : at + BATCH])
    # A run must have a directory of artifacts, and empty ones get lost on the way to whoever downloads it.
    client.log_dict(run, request.spec, "spec.json")
    client.set_terminated(run, end_time=int(max((point.at for point in points), default=0.0) * 1000))
