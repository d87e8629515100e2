"""An offline run of Weights & Biases: `wandb sync DIRECTORY/wandb/offline-run-*` uploads it."""

from itertools import groupby
from pathlib import Path

from workers.exports.run_metrics import ExportRequest, TaggedPoint
from workers.exports.spec_values import flat_values


def write(request: ExportRequest, points: list[TaggedPoint], directory: Path) -> None:
    import wandb

    settings = wandb.Settings(console="off", silent=True, x_disable_meta=True, x_disable_stats=True, disable_git=True)
    run = wandb.init(
        project="shardyard",
        name=request.name or request.job,
        id=f"{request.job}-{request.attempt}",
        config=flat_values(request.spec),
        dir=str(directory),
        mode="offline",
        settings=settings,
    )
    for step, group in groupby(points, key=lambda point: point.step):
        together = list(group)
        run.log({"_timestamp": together[-1].at} | {point.tag: point.value for point in together}, step=step)
    run.finish()
