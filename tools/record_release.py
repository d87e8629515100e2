"""Records what a release leaves on disk, for the test that a later version goes on with it.

    python -m tools.record_release .venv/bin/shardyard tests/acceptance/releases/0.1.0.tar.gz

Runs `shardyard up` of that release on a directory of its own: jobs end in each way, one is on its way and one waits
when it is stopped. The archive has the data directory, and in answers.json what the release said about its jobs. It
speaks HTTP and nothing else with the release, so that any version can be recorded.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import httpx

SECONDS = 180
#: What the program printed; what the service adds differs from version to version.
OWN_STREAMS = ("stdout", "stderr")
ENDED = ("succeeded", "failed", "cancelled")
TRAIN = b"""\
import json, pathlib, torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = torch.nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for rows, wanted in DataLoader(TensorDataset(torch.randn(100, 5), torch.randn(100, 1)), batch_size=30):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(rows), wanted)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Record the data directory of a release.")
    parser.add_argument("program", type=Path, help="the release's `shardyard`")
    parser.add_argument("archive", type=Path)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        data_dir = Path(scratch, "data")
        with _running(given.program.absolute(), data_dir) as client:
            answers = _record(client)
        given.archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(given.archive, "w:gz") as archive:
            archive.add(data_dir, "data", filter=_without_leftovers)
            said = json.dumps(answers, indent=1).encode()
            about = tarfile.TarInfo("answers.json")
            about.size = len(said)
            archive.addfile(about, io.BytesIO(said))
    print(f"{given.archive}: {given.archive.stat().st_size} bytes, {len(answers['jobs'])} jobs")
    return 0


def _without_leftovers(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without what only takes room, and the sockets, locks and logs of processes that have ended."""
    path = PurePosixPath(member.name)
    left_over = path.match("data/log/*") or path.suffix == ".lock" or path.name == "lock" or "reserve" in path.name
    if left_over or not (member.isfile() or member.isdir()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


@contextmanager
def _running(program: Path, data_dir: Path) -> Iterator[httpx.Client]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDYARD_")}
    environment["SHARDYARD_RESERVE_BYTES"] = str(1 << 20)
    command = [str(program), "up", "--port", "0", "--devices", "cpu:3", "--data-dir", str(data_dir)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = _read_address(process)
            token = (data_dir / "admin.token").read_text().strip()
            with httpx.Client(base_url=address, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
                _wait(lambda: client.get("/v1/nodes").json()["nodes"])
                yield client
        finally:
            process.terminate()
            process.communicate(timeout=SECONDS)


def _read_address(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    for line in process.stdout:
        for word in line.split():
            if word.startswith("http://127.0.0.1:"):
                return word.rstrip("/.,")
    raise RuntimeError("`up` ended before it said its address")


def _record(client: httpx.Client) -> dict[str, Any]:
    digits: dict[str, Any] = {
        "resources": {"devices": 3},
        "parallelism": {"strategy": "dp"},
        "program": {
            "epochs": 1,
            "model": {"ref": "mlp", "args": {"in_features": 64, "hidden": [16], "out_features": 10}},
            "data": {"ref": "digits", "batch_size": 64, "shuffle": True},
            "loss": {"ref": "cross_entropy"},
            "optimizer": {"ref": "sgd", "args": {"lr": 0.05}},
        },
    }
    ddp = digits | {"resources": {"devices": 2}, "parallelism": {"strategy": "ddp"}}
    jobs = {
        "dp": _submit(client, digits | {"name": "dp", "labels": {"release": "old"}}),
        "ddp": _submit(client, ddp | {"name": "ddp"}),
        "script": _submit(client, _script(client, TRAIN) | {"name": "script"}),
        "failed": _submit(client, _script(client, b"raise ValueError('as planned')\n") | {"name": "failed"}),
    }
    for job in jobs.values():
        _wait_for(client, job, *ENDED)
    jobs["cancelled"] = _submit(
        client, digits | {"name": "cancelled", "program": digits["program"] | {"epochs": 10**5}}
    )
    _wait_for(client, jobs["cancelled"], "running")
    client.post(f"/v1/jobs/{jobs['cancelled']}/cancel").raise_for_status()
    _wait_for(client, jobs["cancelled"], *ENDED)
    token = client.post("/v1/tokens", json={"scopes": ["read"], "name": "a reader"})
    token.raise_for_status()
    said = {name: _answers(client, job) for name, job in jobs.items()}
    endless = digits["program"] | {"epochs": 10**6, "checkpoint": {"every_steps": 20}}
    jobs["running"] = _submit(client, digits | {"name": "running", "program": endless})
    jobs["waiting"] = _submit(client, digits | {"name": "waiting"})
    _wait_for(client, jobs["running"], "running")
    _wait(lambda: (client.get(f"/v1/jobs/{jobs['running']}").json().get("progress") or {}).get("step", 0) > 50)
    return {"jobs": jobs, "said": said, "reader": token.json()["token"]}


def _script(client: httpx.Client, text: bytes) -> dict[str, Any]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as bundle:
        bundle.writestr("train.py", text)
    answer = client.post("/v1/bundles", content=packed.getvalue(), headers={"Content-Type": "application/zip"})
    answer.raise_for_status()
    return {
        "resources": {"devices": 1},
        "parallelism": {"strategy": "single"},
        "program": {"kind": "script", "bundle": answer.json()["id"], "entrypoint": "train.py"},
    }


def _submit(client: httpx.Client, spec: dict[str, Any]) -> str:
    answer = client.post("/v1/jobs", json=spec)
    if answer.status_code != 201:
        raise RuntimeError(answer.text)
    return str(answer.json()["id"])


def _answers(client: httpx.Client, job: str) -> dict[str, Any]:
    lines = client.get(f"/v1/jobs/{job}/logs?limit=1000").json()["lines"]
    return {
        "status": client.get(f"/v1/jobs/{job}").json(),
        "report": client.get(f"/v1/jobs/{job}/splits").json(),
        "lines": [line["text"] for line in lines if line["stream"] in OWN_STREAMS],
        "artifacts": client.get(f"/v1/jobs/{job}/artifacts").json(),
    }


def _wait_for(client: httpx.Client, job: str, *states: str) -> None:
    _wait(lambda: client.get(f"/v1/jobs/{job}").json()["state"] in states)


def _wait(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {SECONDS} s")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
