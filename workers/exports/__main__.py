"""Write one format; the request comes as JSON on the standard input. Exit code NOT_INSTALLED: its library is."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from workers.exports import mlflow_run, tensorboard_files, wandb_run
from workers.exports.run_metrics import NOT_INSTALLED, ExportRequest, TaggedPoint, read_points

WRITERS: Mapping[str, Callable[[ExportRequest, list[TaggedPoint], Path], None]] = {
    "tensorboard": tensorboard_files.write,
    "mlflow": mlflow_run.write,
    "wandb": wandb_run.write,
}


def main() -> int:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=ExportRequest)
    directory = Path(request.directory)
    directory.mkdir(parents=True)
    try:
        WRITERS[request.format](request, read_points(Path(request.metrics)), directory)
    except ModuleNotFoundError as error:
        directory.rmdir()
        print(error, file=sys.stderr)
        return NOT_INSTALLED
    return 0


if __name__ == "__main__":
    sys.exit(main())
